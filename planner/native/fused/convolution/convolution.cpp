#include "fused/convolution/convolution.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "fused/convolution/kernels.h"

namespace planner::fused {
namespace {

constexpr size_t kTaskFilters = 16, kTaskResults = 1 << 11;  // at most, of a task of sums
constexpr size_t kLeastTasks = 8;  // of a sum, where it can be split
constexpr size_t kTurnedChannels = 16;  // of a task: as many streams are written at once
constexpr size_t kFoldAfter = 1 << 13;  // elements that float32 adds up, before float64 does
constexpr size_t kStripFloats = 1 << 15;  // of the filters' rows that meet a strip of the image
constexpr size_t kSpreadRows = 8, kSpreadFloats = 1 << 16;  // of the result, and of a strip of the image

// Where rows of one channel of an image lie, with its padding, in parts: every so many rows and columns
// lie together.
struct Plane {
  const size_t all_rows, row_step, column_step;
  const size_t rows, columns;  // of a part: [row_step][column_step][rows][columns]

  Plane(size_t all_rows, size_t all_columns, size_t row_step, size_t column_step)
      : all_rows(all_rows),
        row_step(row_step),
        column_step(column_step),
        rows((all_rows + row_step - 1) / row_step),
        columns((all_columns + column_step - 1) / column_step) {}

  size_t size() const { return row_step * column_step * rows * columns; }

  size_t place(size_t row, size_t column) const {
    size_t part = row % row_step * column_step + column % column_step;
    return (part * rows + row / row_step) * columns + column / column_step;
  }

  // Copy the rows of an image from `start` on; below 0 and from `height` on they are 0. The columns
  // stand `left` further right, and those beside them stay as they are.
  void fill(float* to, const float* image, int64_t start, size_t height, size_t width,
            size_t left) const {
    for (size_t row = 0; row < all_rows; row++) {
      const int64_t from = start + int64_t(row);
      const bool is_inside = from >= 0 && from < int64_t(height);
      fill_row(to, row, is_inside ? image + size_t(from) * width : nullptr, width, left);
    }
  }

 private:
  void fill_row(float* to, size_t row, const float* pixels, size_t width, size_t left) const {
    const size_t step = column_step;
    for (size_t first = 0; first < std::min(step, width); first++) {  // columns first, first + step, ...
      float* at = to + place(row, first + left);
      const size_t count = (width - first + step - 1) / step;
      if (!pixels)
        std::memset(at, 0, count * sizeof(float));
      else if (step == 1)
        std::memcpy(at, pixels, count * sizeof(float));
      else if (step == 2)  // a step that the compiler knows
        for (size_t i = 0; i < count; i++) at[i] = pixels[first + 2 * i];
      else
        for (size_t i = 0; i < count; i++) at[i] = pixels[first + step * i];
    }
  }
};

// A convolution in whole numbers.
struct Sizes {
  size_t samples, height, width, filters, kernel_channels, kernel_height, kernel_width;
  size_t result_height, result_width, groups;
  size_t strides[2], dilations[2], top, left, padded_width;
  // how far apart samples and channels lie, and filters and their channels
  size_t image_sample, image_channel, kernel_filter, kernel_channel, result_sample, result_filter;

  Sizes(const Window& window, const std::vector<int64_t>& image, const std::vector<int64_t>& kernel) {
    const auto dims = result_dims(window, image, kernel);
    const bool turned = window.is_gradient();
    samples = size_t(image[turned]);
    filters = size_t(kernel[turned]), kernel_channels = size_t(kernel[!turned]);
    height = size_t(image[2]), width = size_t(image[3]);
    kernel_height = size_t(kernel[2]), kernel_width = size_t(kernel[3]);
    result_height = size_t(dims[2]), result_width = size_t(dims[3]), groups = size_t(window.group);
    for (int axis = 0; axis < 2; axis++) {  // what is far apart in one is it in the other
      strides[axis] = size_t(turned ? window.dilations[axis] : window.strides[axis]);
      dilations[axis] = size_t(turned ? window.strides[axis] : window.dilations[axis]);
    }
    top = size_t(window.pads[0]), left = size_t(window.pads[1]);
    padded_width = left + width + size_t(window.pads[3]);
    const size_t image_row = size_t(image[1]) * pixels(), kernel_row = size_t(kernel[1]) * taps();
    image_sample = turned ? pixels() : image_row, image_channel = turned ? image_row : pixels();
    kernel_filter = turned ? taps() : kernel_row, kernel_channel = turned ? kernel_row : taps();
    result_sample = turned ? results() : filters * results();
    result_filter = turned ? samples * results() : results();
  }

  size_t group_filters() const { return filters / groups; }
  size_t pixels() const { return height * width; }
  size_t taps() const { return kernel_height * kernel_width; }
  size_t results() const { return result_height * result_width; }

  std::vector<size_t> tap_places(const Plane& plane) const {
    return places(plane, kernel_height, kernel_width, dilations);
  }

  std::vector<size_t> result_places(const Plane& plane) const {
    return places(plane, result_height, result_width, strides);
  }

 private:
  static std::vector<size_t> places(const Plane& plane, size_t rows, size_t columns,
                                    const size_t (&steps)[2]) {
    std::vector<size_t> found;
    for (size_t y = 0; y < rows; y++)
      for (size_t x = 0; x < columns; x++) found.push_back(plane.place(y * steps[0], x * steps[1]));
    return found;
  }
};

struct Convolution {
  const Sizes size;
  const float *image, *kernel, *bias;
  float* result;

  // Copy rows of one channel, from a row of the padded image on.
  void read(const Plane& plane, size_t sample, size_t channel, size_t row, float* to) const {
    const float* from = image + sample * size.image_sample + channel * size.image_channel;
    plane.fill(to, from, int64_t(row) - int64_t(size.top), size.height, size.width, size.left);
  }
};

struct Part {  // filters of one group, and samples
  size_t filter, filters, sample, samples;
};

// Sums in float32, a few lanes of each, and now and then in float64.
class Sums {
 public:
  explicit Sums(size_t count) : parts_(count * kernels().width, 0.0f), totals_(count, 0.0) {}

  float* lanes_of(size_t sum) { return &parts_[sum * kernels().width]; }

  void added(size_t elements) {  // to each sum
    if ((unfolded_ += elements) >= kFoldAfter) fold();
  }

  const double* totals() {
    fold();
    return totals_.data();
  }

 private:
  void fold() {
    const size_t lanes = kernels().width;
    for (size_t i = 0; i < totals_.size(); i++)
      for (size_t lane = i * lanes; lane < (i + 1) * lanes; lane++) totals_[i] += parts_[lane];
    std::fill(parts_.begin(), parts_.end(), 0.0f);
    unfolded_ = 0;
  }

  std::vector<float> parts_;
  std::vector<double> totals_;
  size_t unfolded_ = 0;
};

// Add to sums, [filter][result][lane], what a strip of the image gives by each of some filters.
void meet(Strips strips, size_t filters, const std::vector<size_t>& places, float* sums) {
  const size_t lanes = kernels().width, results = places.size();
  while (filters) {
    const bool has_four = filters >= kFilters;
    const size_t together = kernels().most_results[has_four], taken = has_four ? kFilters : 1;
    for (size_t o = 0; o < results;) {
      const size_t left = results - o, blocks = (left + together - 1) / together;
      const size_t some = (left + blocks - 1) / blocks;  // blocks of about one size
      kernels().sums[has_four][some - 1](strips, &places[o], sums + o * lanes, results * lanes);
      o += some;
    }
    filters -= taken;
    strips.kernel += taken * strips.kernel_filter;
    sums += taken * results * lanes;
  }
}

// A sum for each result of a part. The image comes in strips of rows, so that the rows of the filters
// that meet them stay in the cache for all samples.
void add_up(const Convolution& of, const Part& part) {
  const Sizes& s = of.size;
  const size_t most = std::min(kFoldAfter, kStripFloats / part.filters), results = s.results();
  const size_t strip = std::clamp<size_t>(most / s.kernel_width, 1, s.kernel_height);
  const Plane plane(s.dilations[0] * (strip - 1) + (s.result_height - 1) * s.strides[0] + 1,
                    s.padded_width, 1, s.dilations[1]);
  const std::vector<size_t> places = s.result_places(plane);
  const size_t first_channel = part.filter / s.group_filters() * s.kernel_channels;
  std::vector<float> rows(plane.size(), 0.0f);
  Sums sums(part.samples * part.filters * results);
  for (size_t channel = 0; channel < s.kernel_channels; channel++)
    for (size_t row = 0; row < s.kernel_height; row += strip) {
      const float* kernel = of.kernel + part.filter * s.kernel_filter + channel * s.kernel_channel +
                            row * s.kernel_width;
      const Strips strips{kernel, rows.data(), std::min(strip, s.kernel_height - row),
                          s.kernel_width, s.kernel_filter, s.dilations[0] * plane.columns};
      for (size_t sample = 0; sample < part.samples; sample++) {
        of.read(plane, part.sample + sample, first_channel + channel, row * s.dilations[0],
                rows.data());
        meet(strips, part.filters, places, sums.lanes_of(sample * part.filters * results));
      }
      sums.added(strip * s.kernel_width);
    }
  const double* from = sums.totals();
  for (size_t sample = part.sample; sample < part.sample + part.samples; sample++)
    for (size_t f = part.filter; f < part.filter + part.filters; f++)
      for (size_t i = 0; i < results; i++)
        of.result[sample * s.result_sample + f * s.result_filter + i] =
            float(*from++ + (of.bias ? of.bias[f] : 0.0f));
}

void add_up_all(const Convolution& of, const Parallel& parallel) {
  const Sizes& s = of.size;
  const size_t of_group = s.group_filters();
  size_t filters = std::clamp<size_t>(kTaskResults / s.results(), 1, std::min(kTaskFilters, of_group));
  size_t samples = std::clamp<size_t>(kTaskResults / (filters * s.results()), 1, s.samples);
  auto parts = [](size_t all, size_t some) { return (all + some - 1) / some; };
  auto tasks = [&] { return parts(of_group, filters) * s.groups * parts(s.samples, samples); };
  while (tasks() < kLeastTasks && samples > 1) samples = (samples + 1) / 2;
  while (tasks() < kLeastTasks && filters > kFilters) filters = (filters + 1) / 2;
  const size_t filter_parts = parts(of_group, filters);
  parallel(tasks(), [&](size_t number) {
    const size_t first = number % filter_parts * filters, group = number / filter_parts % s.groups;
    const size_t sample = number / filter_parts / s.groups * samples;
    add_up(of, {group * of_group + first, std::min(filters, of_group - first), sample,
                std::min(samples, s.samples - sample)});
  });
}

// One channel by its one filter, over all samples, strip by strip: an element of the filter at a time,
// along the rows.
void slide(const Convolution& of, size_t channel) {
  const Sizes& s = of.size;
  const size_t reach = (s.kernel_height - 1) * s.dilations[0] + 1, fit = kSpreadFloats / s.padded_width;
  const size_t some = fit > reach ? (fit - reach) / s.strides[0] + 1 : 1;
  const size_t strip = std::min(some, s.result_height);
  const Plane plane((strip - 1) * s.strides[0] + reach, s.padded_width, s.strides[0], s.strides[1]);
  const std::vector<size_t> places = s.tap_places(plane);
  std::vector<float> image(plane.size(), 0.0f);
  // what lies between the rows of the result is computed, too, and left out
  std::vector<float> made((strip - 1) * plane.columns + s.result_width);
  const float* kernel = of.kernel + channel * s.kernel_filter;
  const float bias = of.bias ? of.bias[channel] : 0.0f;
  for (size_t sample = 0; sample < s.samples; sample++)
    for (size_t row = 0; row < s.result_height; row += strip) {
      of.read(plane, sample, channel, row * s.strides[0], image.data());
      kernels().slide({kernel, image.data(), places.data(), places.size(), 1, 0}, made.data(),
                      made.size());
      const size_t rows = std::min(strip, s.result_height - row);
      float* to = of.result + sample * s.result_sample + channel * s.result_filter +
                  row * s.result_width;
      for (size_t y = 0; y < rows; y++)
        for (size_t x = 0; x < s.result_width; x++) *to++ = made[y * plane.columns + x] + bias;
    }
}

// The weights of up to four filters for some channels: [channels][taps][four].
void pack(const Convolution& of, size_t filter, size_t filters, size_t channel, size_t channels,
          float* packed) {
  const Sizes& s = of.size;
  std::fill_n(packed, channels * s.taps() * kFilters, 0.0f);
  for (size_t f = 0; f < filters; f++) {
    const float* from = of.kernel + (filter + f) * s.kernel_filter + channel * s.kernel_channel;
    for (size_t i = 0; i < channels * s.taps(); i++) packed[i * kFilters + f] = from[i];
  }
}

// Some rows of a sample's result, of one group. The channels come in parts that stay in the cache.
void spread(const Convolution& of, size_t sample, size_t group, size_t row, size_t rows) {
  const Sizes& s = of.size;
  const size_t reach = (rows - 1) * s.strides[0] + (s.kernel_height - 1) * s.dilations[0];
  const Plane plane(reach + 1, s.padded_width, s.strides[0], s.strides[1]);
  const std::vector<size_t> places = s.tap_places(plane);
  const size_t most =
      std::clamp<size_t>(kSpreadFloats / plane.size(), 1, std::max<size_t>(1, s.kernel_channels));
  // vectors may begin before the end of the last channel's rows, and end after it
  std::vector<float> strip(most * plane.size() + kVectors * kernels().width, 0.0f);
  std::vector<float> packed(most * s.taps() * kFilters);
  std::vector<float> rest(s.result_width);  // of filters that there are not
  const size_t first = group * s.group_filters();
  float* result =
      of.result + sample * s.result_sample + first * s.result_filter + row * s.result_width;
  for (size_t f = 0; f < s.group_filters(); f++)
    std::fill_n(result + f * s.result_filter, rows * s.result_width,
                of.bias ? of.bias[first + f] : 0.0f);
  for (size_t channel = 0; channel < s.kernel_channels; channel += most) {
    const size_t count = std::min(most, s.kernel_channels - channel);
    for (size_t i = 0; i < count; i++)
      of.read(plane, sample, group * s.kernel_channels + channel + i, row * s.strides[0],
              &strip[i * plane.size()]);
    for (size_t f = 0; f < s.group_filters(); f += kFilters) {
      const size_t filters = std::min(kFilters, s.group_filters() - f);
      pack(of, first + f, filters, channel, count, packed.data());
      for (size_t y = 0; y < rows; y++) {
        float* to[kFilters];
        for (size_t i = 0; i < kFilters; i++)
          to[i] = i < filters ? result + (f + i) * s.result_filter + y * s.result_width : rest.data();
        kernels().spread({packed.data(), &strip[y * plane.columns], places.data(), places.size(), count,
                          plane.size()},
                         to, s.result_width);
      }
    }
  }
}

void spread_all(const Convolution& of, const Parallel& parallel) {
  const Sizes& s = of.size;
  const size_t rows = std::min(kSpreadRows, s.result_height);
  const size_t strips = (s.result_height + rows - 1) / rows;
  parallel(s.samples * s.groups * strips, [&](size_t number) {
    const size_t row = number % strips * rows;
    spread(of, number / strips / s.groups, number / strips % s.groups, row,
           std::min(rows, s.result_height - row));
  });
}

void check_window(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error("planner.fused: " + otherwise);
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
    else if (name == "kernel") read(window.kernel, 2, 1);
    else check_window(false, "'" + text + "' is no window");
  }
  return window;
}

std::vector<int64_t> result_dims(const Window& window, const std::vector<int64_t>& image,
                                 const std::vector<int64_t>& kernel) {
  check_window(image.size() == 4 && kernel.size() == 4, "image and kernel have four dims");
  const bool turned = window.is_gradient();
  check_window(!turned || window.group == 1, "a kernel's gradient has one group");
  check_window(kernel[turned] % window.group == 0 &&
                   image[!turned] == kernel[!turned] * window.group,
               "channels and groups do not agree");
  std::vector<int64_t> made = {image[turned], kernel[turned]};
  if (turned) std::swap(made[0], made[1]);
  for (size_t axis = 0; axis < 2; axis++) {
    int64_t window_size = turned ? window.kernel[axis] : kernel[axis + 2];
    int64_t covered = window.dilations[axis] * (window_size - 1) + 1;
    int64_t padded = image[axis + 2] + window.pads[axis] + window.pads[axis + 2];
    check_window(window_size > 0 && covered <= padded, "the kernel is larger than the image");
    int64_t windows = (padded - covered) / window.strides[axis] + 1;
    check_window(!turned || kernel[axis + 2] == windows, "the windows and their gradients do not agree");
    made.push_back(turned ? window.kernel[axis] : windows);
  }
  return made;
}

void convolve(const Window& window, const std::vector<int64_t>& image_dims, const float* image,
              const std::vector<int64_t>& kernel_dims, const float* kernel, const float* bias,
              float* result, const Parallel& parallel) {
  const Convolution of{{window, image_dims, kernel_dims}, image, kernel, bias, result};
  const Sizes& s = of.size;
  if (!s.samples || !s.results() || !s.filters) return;
  if (window.is_gradient() || s.results() < s.taps())
    add_up_all(of, parallel);
  else if (s.group_filters() == 1 && s.kernel_channels == 1)
    parallel(s.groups, [&](size_t channel) { slide(of, channel); });
  else
    spread_all(of, parallel);
}

void turn(const std::vector<int64_t>& dims, const float* kernel, float* made, const Parallel& parallel) {
  const size_t filters = dims[0], channels = dims[1];
  const size_t places = std::accumulate(dims.begin() + 2, dims.end(), size_t{1}, std::multiplies<>());
  parallel((channels + kTurnedChannels - 1) / kTurnedChannels, [&](size_t task) {
    const size_t first = task * kTurnedChannels, end = std::min(channels, first + kTurnedChannels);
    for (size_t filter = 0; filter < filters; filter++)
      for (size_t channel = first; channel < end; channel++) {
        const float* from = kernel + (filter * channels + channel) * places;
        float* to = made + (channel * filters + filter) * places;
        std::reverse_copy(from, from + places, to);
      }
  });
}

}  // namespace planner::fused
