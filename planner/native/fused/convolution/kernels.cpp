// The loops, compiled three times on x86, as those of loops.cpp are. PLANNER_PLAIN_LOOPS, for tests,
// leaves the first alone.
#include "fused/convolution/kernels.h"

#include <algorithm>
#include <cstring>

#include "fused/processor.h"

#ifdef PLANNER_HAS_KINDS
#include <immintrin.h>
#endif
#ifdef __clang__
#define PLANNER_UNROLL _Pragma("unroll")
#else
#define PLANNER_UNROLL _Pragma("GCC unroll 16")
#endif

namespace planner::fused {
namespace plain {
namespace {
constexpr size_t kWidth = 8;
struct Vector {
  float at[kWidth];
  float operator[](size_t i) const { return at[i]; }
};
inline Vector load_part(const float* at, size_t count) {
  Vector made = {};
  std::memcpy(made.at, at, count * sizeof(float));
  return made;
}
inline Vector load(const float* at) { return load_part(at, kWidth); }
inline Vector fma(const Vector& a, const Vector& b, Vector c) {
  for (size_t i = 0; i < kWidth; i++) c.at[i] += a.at[i] * b.at[i];
  return c;
}
inline Vector all(float value) {
  Vector made;
  for (float& at : made.at) at = value;
  return made;
}
inline void store_part(const Vector& vector, float* to, size_t count) {
  std::memcpy(to, vector.at, count * sizeof(float));
}
inline void store(const Vector& vector, float* to) { store_part(vector, to, kWidth); }
#include "fused/convolution/kernels.inc"
}  // namespace
}  // namespace plain

#ifdef PLANNER_HAS_KINDS
PLANNER_FOR_AVX2
namespace avx2 {
namespace {
constexpr size_t kWidth = 8;
using Vector = __m256;
inline __m256i first(size_t count) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count)), places);
}
inline Vector load(const float* at) { return _mm256_loadu_ps(at); }
inline Vector load_part(const float* at, size_t count) { return _mm256_maskload_ps(at, first(count)); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector all(float value) { return _mm256_set1_ps(value); }
inline void store(Vector vector, float* to) { _mm256_storeu_ps(to, vector); }
inline void store_part(Vector vector, float* to, size_t count) {
  _mm256_maskstore_ps(to, first(count), vector);
}
#include "fused/convolution/kernels.inc"
}  // namespace
}  // namespace avx2
PLANNER_FOR_ANY
PLANNER_FOR_AVX512
namespace avx512 {
namespace {
constexpr size_t kWidth = 16;
using Vector = __m512;
inline __mmask16 first(size_t count) { return __mmask16((1u << count) - 1); }
inline Vector load(const float* at) { return _mm512_loadu_ps(at); }
inline Vector load_part(const float* at, size_t count) {
  return _mm512_maskz_loadu_ps(first(count), at);
}
inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector all(float value) { return _mm512_set1_ps(value); }
inline void store(Vector vector, float* to) { _mm512_storeu_ps(to, vector); }
inline void store_part(Vector vector, float* to, size_t count) {
  _mm512_mask_storeu_ps(to, first(count), vector);
}
#include "fused/convolution/kernels.inc"
}  // namespace
}  // namespace avx512
PLANNER_FOR_ANY
#endif

const Kernels& kernels() {
  static const Kernels found = PLANNER_CHOOSE(kernels());
  return found;
}

}  // namespace planner::fused
