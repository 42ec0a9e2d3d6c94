// A program of planner.fused and convolutions on many threads, which ThreadSanitizer watches: prints
// how many elements differ from one thread's.
#include <cstdio>
#include <cstring>
#include <thread>

#include "fused/convolution/convolution.h"
#include "fused/run.h"

using namespace planner::fused;

int main() {
  const Program program = parse(
      "axes 1\nx = input float\ny = input float\nr = input float row\nt = mul x y\nm = mean t\n"
      "d = sub t m\nu = mul d r\ne = exp u\ns = sum e\nq = div e s\noutput q\noutput s keep\n");
  const std::vector<Dims> dims = {{200, 40, 64}, {64}, {40, 1}};
  std::vector<std::vector<float>> inputs = {std::vector<float>(200 * 40 * 64),
                                            std::vector<float>(64), std::vector<float>(40)};
  for (auto& input : inputs)
    for (size_t i = 0; i < input.size(); i++) input[i] = float(i * 7919 % 1000) / 1000;
  const Space space = space_of(program, dims);
  auto result = [&](const Parallel& parallel) {
    std::vector<float> q(200 * 40 * 64), s(200 * 40);
    run(program, space, dims, {inputs[0].data(), inputs[1].data(), inputs[2].data()},
        {q.data(), s.data()}, parallel);
    q.insert(q.end(), s.begin(), s.end());
    auto add = [&](const char* text, const Dims& image, const Dims& kernel) {
      const Window window = parse_window(text);
      size_t count = 1;
      for (int64_t dim : result_dims(window, image, kernel)) count *= size_t(dim);
      std::vector<float> made(count);
      convolve(window, image, inputs[0].data(), kernel, inputs[0].data() + 99, nullptr,
               made.data(), parallel);
      q.insert(q.end(), made.begin(), made.end());
    };
    add("pads 1 1 1 1 group 16", {1, 64, 20, 20}, {64, 4, 20, 20});
    add("pads 1 1 1 1 group 64", {2, 64, 20, 20}, {64, 1, 3, 3});
    add("pads 1 1 1 1", {2, 16, 30, 40}, {19, 16, 3, 3});
    add("pads 1 1 1 1 kernel 3 3", {2, 16, 30, 40}, {2, 19, 30, 40});
    std::vector<float> turned(19 * 33 * 9);
    turn({19, 33, 3, 3}, inputs[0].data(), turned.data(), parallel);
    q.insert(q.end(), turned.begin(), turned.end());
    return q;
  };
  auto one = result([](size_t tasks, const std::function<void(size_t)>& work) {
    for (size_t i = 0; i < tasks; i++) work(i);
  });
  auto many = result([](size_t tasks, const std::function<void(size_t)>& work) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; t++)
      threads.emplace_back([&, t] {
        for (size_t i = t; i < tasks; i += 4) work(i);
      });
    for (auto& thread : threads) thread.join();
  });
  size_t differ = 0;
  for (size_t i = 0; i < one.size(); i++) differ += std::memcmp(&one[i], &many[i], 4) != 0;
  std::printf("%zu\n", differ);
  return differ != 0;
}
