#include "fused/program.h"

#include <locale.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>

namespace planner::fused {
namespace {

const std::map<std::string, Type>& types() {
  static const auto* all = new std::map<std::string, Type>{{"float", Type::kFloat},
                                                           {"double", Type::kDouble},
                                                           {"int32", Type::kInt32},
                                                           {"int64", Type::kInt64},
                                                           {"bool", Type::kBool},
                                                           {"float16", Type::kFloat16},
                                                           {"bfloat16", Type::kBfloat16}};
  return *all;
}

// Numbers have a point in programs, whatever the process's locale writes.
locale_t point() {
  static const locale_t made = newlocale(LC_NUMERIC_MASK, "C", nullptr);
  return made;
}

// Of one program; each function reads a line.
class Parser {
 public:
  Program parsed(const std::string& text) {
    made_.text = text;
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
      number_++, line_ = line;
      std::istringstream words(line);
      std::vector<std::string> read;
      for (std::string word; words >> word;) read.push_back(word);
      if (!read.empty() && read[0][0] != '#') take(read);
    }
    line_.clear();
    must(!made_.outputs.empty(), "the program has no output");
    place();
    return std::move(made_);
  }

 private:
  void must(bool holds, const std::string& otherwise) const {
    if (holds) return;
    std::string where;
    if (!line_.empty()) where = "line " + std::to_string(number_) + ", '" + line_ + "': ";
    throw std::runtime_error("planner.fused: " + where + otherwise);
  }

  void take(const std::vector<std::string>& words) {
    if (words[0] == "axes") return axes(words);
    if (words[0] == "output") return output(words);
    must(words.size() >= 4 && words[1] == "=", "expected NAME = OPERATION VALUE ...");
    must(!names_.count(words[0]), "there is a value of that name already");
    if (words[2] == "input") return input(words);
    if (words[2] == "constant") return constant(words);
    step(words);
  }

  void axes(const std::vector<std::string>& words) {
    must(words.size() == 2 && made_.variables.empty(), "expected axes N, before anything else");
    made_.axes = size_t(whole(words[1], 1, 64));
  }

  int64_t whole(const std::string& word, int64_t least, int64_t most) const {
    char* end = nullptr;
    errno = 0;
    int64_t value = std::strtoll(word.c_str(), &end, 10);
    must(!*end && !word.empty() && !errno && value >= least && value <= most,
         "'" + word + "' is no whole number from " + std::to_string(least) + " to " +
             std::to_string(most));
    return value;
  }

  Type type(const std::string& word) const {
    auto found = types().find(word);
    must(found != types().end(),
         "'" + word + "' is no type: float, double, int32, int64, bool, float16 and bfloat16 are");
    return found->second;
  }

  int add(const Variable& variable) {
    names_[variable.name] = int(made_.variables.size());
    made_.variables.push_back(variable);
    return names_[variable.name];
  }

  void input(const std::vector<std::string>& words) {
    bool is_row = words.size() == 5 && words[4] == "row";
    must(words.size() == 4 || is_row, "expected NAME = input TYPE, with row behind it or nothing");
    must(!is_row || made_.axes, "a row needs axes N on the first line");
    Variable made;
    made.name = words[0], made.type = type(words[3]);
    made.kind = is_row ? Kind::kRow : Kind::kFull;
    made.input = int(made_.inputs.size());
    made_.inputs.push_back(add(made));
  }

  void constant(const std::vector<std::string>& words) {
    must(words.size() == 5, "expected NAME = constant TYPE VALUE");
    Variable made;
    made.name = words[0], made.type = type(words[3]), made.kind = Kind::kConstant;
    const char* text = words[4].c_str();
    char* end = nullptr;
    auto put = [&](auto value) { std::memcpy(made.constant.data(), &value, sizeof value); };
    switch (made.type) {
      case Type::kFloat16:
      case Type::kBfloat16:  // a float, which the kernel rounds
      case Type::kFloat: put(strtof_l(text, &end, point())); break;
      case Type::kDouble: put(strtod_l(text, &end, point())); break;
      case Type::kInt32: put(int32_t(whole(words[4], INT32_MIN, INT32_MAX))); break;
      case Type::kInt64: put(whole(words[4], INT64_MIN, INT64_MAX)); break;
      case Type::kBool: put(static_cast<unsigned char>(whole(words[4], 0, 1))); break;
    }
    must(!end || (!*end && end != text), "'" + words[4] + "' is no number");
    add(made);
  }

  void step(const std::vector<std::string>& words) {
    const std::string& name = words[2];
    size_t arity = arity_of(name), first = name == "cast" ? 4 : 3;
    must(arity, "there is no operation '" + name + "'");
    must(words.size() == first + arity, name + " takes " + std::to_string(arity) + " value(s)" +
                                            (name == "cast" ? " behind a type" : ""));
    Step made{};
    std::vector<Type> operand_types;
    Kind kind = Kind::kConstant;
    for (size_t i = first; i < words.size(); i++) {
      auto found = names_.find(words[i]);
      must(found != names_.end(), "there is no value '" + words[i] + "' above");
      const Variable& operand = made_.variables[size_t(found->second)];
      made.operands.push_back(found->second);
      operand_types.push_back(operand.type);
      kind = std::min(kind, operand.kind);
    }
    Choice choice;
    if (name == "cast") {
      choice.result = type(words[3]);
      choice.exists = true, choice.loop = cast_loop(operand_types[0], choice.result);
    } else {
      choice = choose(name, operand_types);
    }
    must(choice.exists, name + " is not for values of these types");
    must(kind != Kind::kConstant, name + " of constants alone: write the result as a constant");
    must(!choice.reduces || made_.axes, name + " needs axes N on the first line");
    must(!choice.reduces || kind == Kind::kFull, name + " of a value that a row has once");
    made.name = name, made.loop = choice.loop, made.reduces = choice.reduces;
    if (made.reduces) made_.variables[size_t(made.operands[0])].is_reduced = true;
    Variable result;
    result.name = words[0], result.type = choice.result;
    result.kind = choice.reduces ? Kind::kRow : kind;
    made.result = add(result);
    made_.steps.push_back(made);
  }

  void output(const std::vector<std::string>& words) {
    must(words.size() == 2 || words.size() == 3, "expected output NAME");
    auto found = names_.find(words[1]);
    must(found != names_.end(), "there is no value '" + words[1] + "' above");
    Variable& variable = made_.variables[size_t(found->second)];
    must(variable.input < 0 && variable.kind != Kind::kConstant, "no operation computes it");
    must(variable.output < 0, "it is an output already");
    bool is_row = variable.kind == Kind::kRow;
    bool told = words.size() == 3 && (words[2] == "keep" || words[2] == "drop");
    must(is_row ? told : words.size() == 2,
         is_row ? "expected keep or drop behind it: what becomes of the row's axes"
                : "keep and drop are for what a row has once");
    variable.output = int(made_.outputs.size());
    made_.outputs.push_back({found->second, is_row && words[2] == "keep"});
  }

  // Scratch memory: a slot is taken again once the last step that reads it is done.
  void place() {
    std::vector<int> last(made_.variables.size(), -1);
    for (size_t i = 0; i < made_.steps.size(); i++)
      for (int operand : made_.steps[i].operands) last[size_t(operand)] = int(i);
    std::vector<int> owners;  // by slot: who has it, -1 for nobody
    auto take_slot = [&](int variable) {
      auto found = std::find(owners.begin(), owners.end(), -1);
      if (found == owners.end()) found = owners.insert(owners.end(), -1);
      *found = variable;
      made_.variables[size_t(variable)].slot = int(found - owners.begin());
    };
    for (int input : made_.inputs) take_slot(input);  // for those that are gathered
    for (size_t i = 0; i < made_.steps.size(); i++) {
      take_slot(made_.steps[i].result);
      for (int& owner : owners) {
        bool stays = owner < 0 || last[size_t(owner)] > int(i) ||
                     made_.variables[size_t(owner)].output >= 0;
        if (!stays) owner = -1;
      }
    }
    made_.slots = int(owners.size());
  }

  Program made_;
  std::map<std::string, int> names_;
  std::string line_;
  size_t number_ = 0;
};

}  // namespace

Program parse(const std::string& text) { return Parser().parsed(text); }

}  // namespace planner::fused
