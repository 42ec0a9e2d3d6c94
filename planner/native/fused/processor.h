// Code for several kinds of processors on x86, and the choice among them: `plain`, `avx2` and `avx512`
// are namespaces. PLANNER_PLAIN_LOOPS, for tests, leaves the first alone. CPUID is asked and not
// __builtin_cpu_supports, which says no to everything in a library that ziglang builds.
#pragma once

#if defined(__x86_64__) && !defined(PLANNER_PLAIN_LOOPS)
#define PLANNER_HAS_KINDS
#include <cpuid.h>

namespace planner::fused {

struct Processor {
  bool has_fma = false;     // AVX2 and FMA
  bool has_avx512 = false;  // F, DQ, BW and VL

  Processor() {  // Intel's manual, volume 1, 14.3 and 15.2; volume 2, CPUID
    unsigned a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const bool saves = c >> 27 & 1, fma = (c >> 12 & 1) && (c >> 28 & 1);
    if (!saves || !fma || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // what the system saves of the registers
    has_fma = (low & 0x6) == 0x6 && (b >> 5 & 1);
    has_avx512 = has_fma && (low & 0xe6) == 0xe6 && (b >> 16 & 1) && (b >> 17 & 1) &&
                 (b >> 30 & 1) && (b >> 31 & 1);
  }
};

inline const Processor& processor() {
  static const Processor found;
  return found;
}

}  // namespace planner::fused

#define PLANNER_CHOOSE(what)              \
  (processor().has_avx512 ? avx512::what  \
   : processor().has_fma  ? avx2::what    \
                          : plain::what)
#if defined(__clang__)
#define PLANNER_FOR_AVX2 \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to = function)")
#define PLANNER_FOR_AVX512                                                                     \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,fma\"))), apply_to = function)")
#define PLANNER_FOR_ANY _Pragma("clang attribute pop")
#else
#define PLANNER_FOR_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define PLANNER_FOR_AVX512   \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512\")")
#define PLANNER_FOR_ANY _Pragma("GCC pop_options")
#endif
#else
#define PLANNER_CHOOSE(what) plain::what
#endif
