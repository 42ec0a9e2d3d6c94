// A program over elements: its text, parsed and checked. docs/native.md describes the text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fused/loops.h"

namespace planner::fused {

// How often a value is there: for each element of the space, for each row of it, or once.
enum class Kind { kFull, kRow, kConstant };

struct Variable {
  std::string name;
  Type type = Type::kFloat;
  Kind kind = Kind::kFull;
  int input = -1;   // its place among the inputs; -1 for none
  int output = -1;  // its place among the outputs; -1 for none
  bool is_reduced = false;  // a reduction reads it
  int slot = -1;    // of the scratch memory, for what a step computes
  std::array<char, 8> constant{};
};

struct Step {
  std::string name;
  Loop loop;
  int result;
  std::vector<int> operands;
  bool reduces;
};

struct Output {
  int variable;
  bool keeps_axes;  // of a row's value: the axes of the row stay, with size 1
};

struct Program {
  std::string text;
  size_t axes = 0;  // the last so many axes make a row; 0: there are no rows
  std::vector<Variable> variables;
  std::vector<int> inputs;
  std::vector<Step> steps;
  std::vector<Output> outputs;
  int slots = 0;
};

// Throws std::runtime_error, which names the line.
Program parse(const std::string& text);

}  // namespace planner::fused
