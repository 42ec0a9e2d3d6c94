// The inner loops of convolutions, in the form for the processor that runs.
#pragma once

#include <cstddef>

namespace planner::fused {

constexpr size_t kFilters = 4;  // that are computed together
constexpr size_t kVectors = 3;  // beside each other, of each of these

struct Strips {  // what sums read: rows of filters, and of the image where a result's first lies
  const float *kernel, *image;
  size_t count, columns, kernel_filter, image_row;
};

struct Taps {  // elements of filters, and where in the image what each meets first lies
  const float *weights, *image;  // weights: [channels][count][filters]
  const size_t* offsets;
  size_t count, channels, channel_step;
};

struct Kernels {
  size_t width;  // elements of a vector
  // [one filter, four filters][results - 1]: add what strips give to sums, [filter][result][lane]
  size_t most_results[2];
  void (*sums[2][9])(const Strips&, const size_t* offsets, float* to, size_t to_filter);
  // element i of a row is the sum over taps of the weight times the image's i further
  void (*slide)(const Taps&, float* to, size_t count);
  // the same for kFilters rows, to which it is added
  void (*spread)(const Taps&, float* const* to, size_t count);
};

const Kernels& kernels();  // of this processor

}  // namespace planner::fused
