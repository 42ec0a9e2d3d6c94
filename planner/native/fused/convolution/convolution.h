// Convolutions of float32, computed where the image lies, without laying out what each result reads.
// There are three ways: with one filter for each channel, an element of the filter at a time is added
// along the rows; with a kernel that is larger than the result, as in gradients of kernels, each result
// is one long sum; and otherwise a few filters meet a part of a row of all channels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fused/run.h"

namespace planner::fused {

struct Window {  // an ONNX Conv's attributes, of rows and columns
  int64_t strides[2] = {1, 1}, dilations[2] = {1, 1}, pads[4] = {0, 0, 0, 0}, group = 1;
  // Where it is the gradient of a kernel, that kernel's rows and columns: what stands for the kernel is
  // the gradient of the convolution's result, and the result is the kernel's.
  int64_t kernel[2] = {0, 0};
  bool is_gradient() const { return kernel[0] > 0; }
};

// Read "strides 1 1 dilations 2 2 pads 1 1 1 1 group 96", or "... kernel 3 3" of a gradient; throws where
// it is another text.
Window parse_window(const std::string& text);

// [samples, channels, rows, columns] of the result; throws where the shapes do not agree.
std::vector<int64_t> result_dims(const Window& window, const std::vector<int64_t>& image,
                                 const std::vector<int64_t>& kernel);

// The same bits with any number of threads. `bias` is null, or has a number for each filter.
void convolve(const Window& window, const std::vector<int64_t>& image_dims, const float* image,
              const std::vector<int64_t>& kernel_dims, const float* kernel, const float* bias,
              float* result, const Parallel& parallel);

// A kernel [filters, channels, ...] with both exchanged and its places in reverse: the gradient of a
// convolution's image is a convolution by it. `made` has as many elements.
void turn(const std::vector<int64_t>& dims, const float* kernel, float* made, const Parallel& parallel);

}  // namespace planner::fused
