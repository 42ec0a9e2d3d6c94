// What every kernel begins with: the text of its operations.
#pragma once

namespace planner::fused {

// Operations do what ONNX Runtime's kernels for CUDA do (core/providers/cuda: cu_inc/common.cuh,
// activation/activations_impl.cu, tensor/where_impl.cu), which shows in the sign of a zero. Whole
// numbers wrap around.
constexpr const char* kOperations = R"cuda(
#define DEVICE static __device__ __forceinline__
typedef unsigned char Byte;  // of a bool: 0 or 1
template <class T> struct Wraps { typedef T type; };
template <> struct Wraps<int> { typedef unsigned type; };
template <> struct Wraps<long long> { typedef unsigned long long type; };
#define UNARY(name, expression) \
  template <class T> DEVICE T op_##name(T a) { \
    typedef typename Wraps<T>::type W; \
    return expression; \
  }
#define BINARY(name, expression) \
  template <class T> DEVICE T op_##name(T a, T b) { \
    typedef typename Wraps<T>::type W; \
    return expression; \
  }
#define COMPARE(name, expression) \
  template <class T> DEVICE Byte op_##name(T a, T b) { return expression; }
#define FUNCTION(name, single, whole) \
  DEVICE float op_##name(float a) { return single; } \
  DEVICE double op_##name(double a) { return whole; }
BINARY(add, T(W(a) + W(b)))
BINARY(sub, T(W(a) - W(b)))
BINARY(mul, T(W(a) * W(b)))
BINARY(div, a / b)
BINARY(maximum, a != a || b != b ? T(W(a) + W(b)) : a > b ? a : b)
BINARY(minimum, a != a || b != b ? T(W(a) + W(b)) : a < b ? a : b)
BINARY(and, T(W(a) & W(b)))
BINARY(or, T(W(a) | W(b)))
BINARY(xor, T(W(a) ^ W(b)))
UNARY(not, T(W(a) ^ 1))
UNARY(neg, T(-W(a)))
UNARY(abs, a > T(0) ? a : T(-W(a)))
UNARY(relu, op_maximum(a, T(0)))
COMPARE(equal, a == b)
COMPARE(less, a < b)
COMPARE(less_equal, a <= b)
COMPARE(greater, a > b)
COMPARE(greater_equal, a >= b)
FUNCTION(sqrt, sqrtf(a), sqrt(a))
FUNCTION(exp, expf(a), exp(a))
FUNCTION(log, logf(a), log(a))
FUNCTION(tanh, tanhf(a), tanh(a))
FUNCTION(erf, erff(a), erf(a))
template <class T> DEVICE T op_sigmoid(T a) {  // by e^-|a|, as on the CPU
  const T e = op_exp(a < T(0) ? a : -a);
  return (a < T(0) ? e : T(1)) / (T(1) + e);
}
DEVICE float op_pow(float a, float b) { return powf(a, b); }
DEVICE double op_pow(double a, double b) { return pow(a, b); }
template <class T> DEVICE T op_where(Byte chosen, T a, T b) { return chosen ? a : b; }
template <class R> struct Cast {
  template <class A> DEVICE R of(A a) { return R(a); }
};
template <> struct Cast<Byte> {
  template <class A> DEVICE Byte of(A a) { return a != A(0); }
};
)cuda";

// Values of 16 bits are floats that are rounded after each operation. Tests define the conversions.
constexpr const char* kHalves = R"cuda(
#ifdef __CUDACC_RTC__
DEVICE float from_float16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
DEVICE unsigned short to_float16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif
DEVICE float from_bfloat16(unsigned short bits) {
  return __int_as_float(int(unsigned(bits) << 16));
}
DEVICE unsigned short to_bfloat16(float value) {
  const unsigned bits = unsigned(__float_as_int(value));
  return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE float in_float16(float value) { return from_float16(to_float16(value)); }
DEVICE float in_bfloat16(float value) { return from_bfloat16(to_bfloat16(value)); }
)cuda";

// By halves: the order in which a block's values are added is always the same.
constexpr const char* kReduction = R"cuda(
#define REDUCTION(name, combine) \
  template <class T> DEVICE T name(T value, void* memory) { \
    T* shared = static_cast<T*>(memory); \
    shared[threadIdx.x] = value; \
    for (unsigned half = kThreads / 2; half; half /= 2) { \
      __syncthreads(); \
      if (threadIdx.x < half) \
        shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]); \
    } \
    __syncthreads(); \
    const T result = shared[0]; \
    __syncthreads(); \
    return result; \
  }
REDUCTION(all_sum, op_add)
REDUCTION(all_max, op_maximum)
REDUCTION(all_min, op_minimum)
)cuda";

}  // namespace planner::fused
