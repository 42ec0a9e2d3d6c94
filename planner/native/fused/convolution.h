// Convolutions with few filters a group, computed where the image lies: with a kernel that is nearly as
// large as the image, as gradients of kernels have, each result is one long sum; with one filter for
// each channel, an element of the filter at a time is added, along the rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fused/run.h"

namespace planner::fused {

struct Window {  // an ONNX Conv's attributes, of rows and columns
  int64_t strides[2] = {1, 1}, dilations[2] = {1, 1}, pads[4] = {0, 0, 0, 0}, group = 1;
};

// Read "strides 1 1 dilations 2 2 pads 1 1 1 1 group 96"; throws where it is another text.
Window parse_window(const std::string& text);

// [samples, channels, rows, columns] of the result; throws where the shapes do not agree.
std::vector<int64_t> result_dims(const Window& window, const std::vector<int64_t>& image,
                                 const std::vector<int64_t>& kernel);

// The same bits with any number of threads.
void convolve(const Window& window, const std::vector<int64_t>& image_dims, const float* image,
              const std::vector<int64_t>& kernel_dims, const float* kernel, float* result,
              const Parallel& parallel);

}  // namespace planner::fused
