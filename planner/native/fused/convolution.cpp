// The sums, compiled three times on x86, as the loops of loops.cpp are; the two with FMA give the
// same bits. PLANNER_PLAIN_LOOPS, for tests, leaves the first alone.
#include "fused/convolution.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "fused/processor.h"

#ifdef PLANNER_HAS_KINDS
#include <immintrin.h>
#endif

namespace planner::fused {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kMostFilters = 16;  // of a task

struct Strips {  // what a block reads: rows of filters, and of the image where a result's first lies
  const float *kernel, *image;
  size_t count, columns, kernel_filter, image_row;
};
using Block = void (*)(const Strips&, const size_t* offsets, double* to, size_t to_filter);
struct Taps {  // a filter's elements, and where in the image what each meets first lies
  const float *kernel, *image;
  const size_t* offsets;
  size_t count;
};
struct Blocks {
  Block one[6], two[6], four[6];  // by number of results
  size_t most_sums;               // that the registers hold
  void (*taps)(const Taps&, float* to, size_t count);
};

}  // namespace

namespace plain {
namespace {
constexpr size_t kMostSums = 4;
struct Lanes {
  float at[kLanes];
};
inline Lanes load_part(const float* at, size_t count) {
  Lanes made = {};
  std::memcpy(made.at, at, count * sizeof(float));
  return made;
}
inline Lanes load(const float* at) { return load_part(at, kLanes); }
inline Lanes fma(const Lanes& a, const Lanes& b, Lanes c) {
  for (size_t i = 0; i < kLanes; i++) c.at[i] += a.at[i] * b.at[i];
  return c;
}
inline float element(const Lanes& lanes, size_t i) { return lanes.at[i]; }
inline Lanes all(float value) {
  Lanes made;
  for (float& at : made.at) at = value;
  return made;
}
inline void store(const Lanes& lanes, float* to) { std::memcpy(to, lanes.at, sizeof lanes.at); }
#include "fused/convolution.inc"
}  // namespace
}  // namespace plain

#ifdef PLANNER_HAS_KINDS
PLANNER_FOR_AVX2
namespace avx2 {
namespace {
constexpr size_t kMostSums = 6;
struct Lanes {
  __m256 low, high;
};
inline Lanes load(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
inline Lanes load_part(const float* at, size_t count) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i end = _mm256_set1_epi32(int(count));
  const __m256i high = _mm256_add_epi32(places, _mm256_set1_epi32(8));
  return {_mm256_maskload_ps(at, _mm256_cmpgt_epi32(end, places)),
          _mm256_maskload_ps(at + 8, _mm256_cmpgt_epi32(end, high))};
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline void store(const Lanes& lanes, float* to) {
  _mm256_storeu_ps(to, lanes.low), _mm256_storeu_ps(to + 8, lanes.high);
}
inline float element(const Lanes& lanes, size_t i) {
  return i < 8 ? lanes.low[i] : lanes.high[i - 8];
}
#include "fused/convolution.inc"
}  // namespace
}  // namespace avx2
PLANNER_FOR_ANY
PLANNER_FOR_AVX512
namespace avx512 {
namespace {
constexpr size_t kMostSums = 16;
using Lanes = __m512;
inline Lanes load(const float* at) { return _mm512_loadu_ps(at); }
inline Lanes load_part(const float* at, size_t count) {
  return _mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), at);
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Lanes all(float value) { return _mm512_set1_ps(value); }
inline void store(const Lanes& lanes, float* to) { _mm512_storeu_ps(to, lanes); }
inline float element(const Lanes& lanes, size_t i) { return lanes[i]; }
#include "fused/convolution.inc"
}  // namespace
}  // namespace avx512
PLANNER_FOR_ANY
#endif

namespace {

const Blocks& chosen() {
  static const Blocks found = PLANNER_CHOOSE(blocks());
  return found;
}

// One channel of an image with its padding, in parts: every so many rows and columns lie together.
struct Plane {
  const size_t row_step, column_step, rows, columns;  // of a part: [row_step][column_step][rows][columns]
  std::vector<float> data;

  Plane(const Window& window, size_t height, size_t width, size_t row_step, size_t column_step)
      : row_step(row_step),
        column_step(column_step),
        rows((height + size_t(window.pads[0] + window.pads[2]) + row_step - 1) / row_step),
        columns((width + size_t(window.pads[1] + window.pads[3]) + column_step - 1) / column_step),
        data(row_step * column_step * rows * columns, 0.0f) {}

  size_t place(size_t row, size_t column) const {  // of an element of the padded image
    size_t part = row % row_step * column_step + column % column_step;
    return (part * rows + row / row_step) * columns + column / column_step;
  }

  void fill(const Window& window, const float* from, size_t height, size_t width) {
    const size_t top = size_t(window.pads[0]), left = size_t(window.pads[1]), step = column_step;
    for (size_t row = 0; row < height; row++, from += width)
      for (size_t first = 0; first < std::min(step, width); first++) {  // columns first, first + step, ...
        float* at = data.data() + place(row + top, first + left);
        const size_t count = (width - first + step - 1) / step;
        if (step == 1)
          std::memcpy(at, from, count * sizeof(float));
        else if (step == 2)  // a step that the compiler knows
          for (size_t i = 0; i < count; i++) at[i] = from[first + 2 * i];
        else
          for (size_t i = 0; i < count; i++) at[i] = from[first + step * i];
      }
  }
};

struct Sizes {  // an image and a kernel, in whole numbers
  size_t samples, channels, height, width, filters, kernel_channels, kernel_height, kernel_width;
  size_t result_height, result_width, groups;
  size_t group_filters() const { return filters / groups; }
  size_t results() const { return result_height * result_width; }
};

// The filters from `first` on, of one group, over all samples: a sum for each result.
void add_up(const Window& window, const Sizes& s, const float* image, const float* kernel,
            float* result, size_t first, size_t count) {
  const Blocks& blocks = chosen();
  Plane plane(window, s.height, s.width, 1, size_t(window.dilations[1]));
  std::vector<size_t> offsets;
  for (size_t y = 0; y < s.result_height; y++)
    for (size_t x = 0; x < s.result_width; x++)
      offsets.push_back(plane.place(y * size_t(window.strides[0]), x * size_t(window.strides[1])));
  const size_t group = first / s.group_filters(), results = s.results();
  const size_t kernel_plane = s.kernel_height * s.kernel_width;
  std::vector<double> sums(s.samples * count * results, 0.0);
  for (size_t channel = 0; channel < s.kernel_channels; channel++)
    for (size_t sample = 0; sample < s.samples; sample++) {
      size_t from = sample * s.channels + group * s.kernel_channels + channel;
      plane.fill(window, image + from * s.height * s.width, s.height, s.width);
      for (size_t f = 0; f < count;) {
        size_t filters = count - f >= 4 && blocks.most_sums > 6 ? 4 : count - f >= 2 ? 2 : 1;
        const Block* some = filters == 4 ? blocks.four : filters == 2 ? blocks.two : blocks.one;
        size_t most = std::min(blocks.most_sums / filters, size_t(filters == 4 ? 4 : 6));
        Strips strips{kernel + ((first + f) * s.kernel_channels + channel) * kernel_plane,
                      plane.data.data(),
                      s.kernel_height,
                      s.kernel_width,
                      s.kernel_channels * kernel_plane,
                      size_t(window.dilations[0]) * plane.columns};
        double* to = &sums[(sample * count + f) * results];
        for (size_t o = 0; o < results;) {
          size_t left = results - o, blocks_left = (left + most - 1) / most;
          size_t taken = (left + blocks_left - 1) / blocks_left;  // blocks of about one size
          some[taken - 1](strips, offsets.data() + o, to + o, results);
          o += taken;
        }
        f += filters;
      }
    }
  for (size_t sample = 0; sample < s.samples; sample++) {
    float* to = result + (sample * s.filters + first) * results;
    const double* from = &sums[sample * count * results];
    for (size_t i = 0; i < count * results; i++) to[i] = float(from[i]);
  }
}

// One channel by its one filter, over all samples: an element of the filter at a time, along the rows.
void slide(const Window& window, const Sizes& s, const float* image, const float* kernel,
           float* result, size_t channel) {
  Plane plane(window, s.height, s.width, size_t(window.strides[0]), size_t(window.strides[1]));
  std::vector<size_t> offsets;
  for (size_t y = 0; y < s.kernel_height; y++)
    for (size_t x = 0; x < s.kernel_width; x++)
      offsets.push_back(plane.place(y * size_t(window.dilations[0]), x * size_t(window.dilations[1])));
  // what lies between the rows of the result is computed, too, and left out
  std::vector<float> made((s.result_height - 1) * plane.columns + s.result_width);
  for (size_t sample = 0; sample < s.samples; sample++) {
    size_t from = sample * s.channels + channel;
    plane.fill(window, image + from * s.height * s.width, s.height, s.width);
    chosen().taps({kernel + channel * offsets.size(), plane.data.data(), offsets.data(), offsets.size()},
                  made.data(), made.size());
    float* to = result + from * s.results();
    for (size_t row = 0; row < s.result_height; row++)
      std::memcpy(to + row * s.result_width, &made[row * plane.columns],
                  s.result_width * sizeof(float));
  }
}

void check_window(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error("planner.fused::DirectConv: " + otherwise);
}

}  // namespace

Window parse_window(const std::string& text) {
  Window window;
  std::istringstream words(text);
  for (std::string name; words >> name;) {
    auto read = [&](int64_t* to, size_t count, int64_t least) {
      for (size_t i = 0; i < count; i++)
        check_window(bool(words >> to[i]) && to[i] >= least, "'" + text + "' is no window");
    };
    if (name == "strides") read(window.strides, 2, 1);
    else if (name == "dilations") read(window.dilations, 2, 1);
    else if (name == "pads") read(window.pads, 4, 0);
    else if (name == "group") read(&window.group, 1, 1);
    else check_window(false, "'" + text + "' is no window");
  }
  return window;
}

std::vector<int64_t> result_dims(const Window& window, const std::vector<int64_t>& image,
                                 const std::vector<int64_t>& kernel) {
  check_window(image.size() == 4 && kernel.size() == 4, "image and kernel have four dims");
  check_window(kernel[0] % window.group == 0 && image[1] == kernel[1] * window.group,
        "channels and groups do not agree");
  std::vector<int64_t> made = {image[0], kernel[0]};
  for (size_t axis = 0; axis < 2; axis++) {
    int64_t covered = window.dilations[axis] * (kernel[axis + 2] - 1) + 1;
    int64_t padded = image[axis + 2] + window.pads[axis] + window.pads[axis + 2];
    check_window(kernel[axis + 2] > 0 && covered <= padded, "the kernel is larger than the image");
    made.push_back((padded - covered) / window.strides[axis] + 1);
  }
  return made;
}

void convolve(const Window& window, const std::vector<int64_t>& image_dims, const float* image,
              const std::vector<int64_t>& kernel_dims, const float* kernel, float* result,
              const Parallel& parallel) {
  auto dims = result_dims(window, image_dims, kernel_dims);
  auto size = [](int64_t dim) { return size_t(dim); };
  const Sizes sizes{size(image_dims[0]),  size(image_dims[1]),  size(image_dims[2]),
                    size(image_dims[3]),  size(kernel_dims[0]), size(kernel_dims[1]),
                    size(kernel_dims[2]), size(kernel_dims[3]), size(dims[2]),
                    size(dims[3]),        size(window.group)};
  if (!sizes.samples || !sizes.results()) return;
  const bool has_larger_result = sizes.results() >= sizes.kernel_height * sizes.kernel_width;
  if (sizes.kernel_channels == 1 && sizes.group_filters() == 1 && has_larger_result)
    return parallel(sizes.groups, [&](size_t channel) {
      slide(window, sizes, image, kernel, result, channel);
    });
  const size_t of_group = sizes.group_filters(), most = std::min(kMostFilters, of_group);
  if (!most) return;
  const size_t parts = (of_group + most - 1) / most;
  parallel(parts * sizes.groups, [&](size_t task) {
    size_t first = task % parts * most, group = task / parts;
    size_t count = std::min(most, of_group - first);
    add_up(window, sizes, image, kernel, result, group * of_group + first, count);
  });
}

}  // namespace planner::fused
