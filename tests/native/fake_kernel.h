// What a kernel of CUDA's needs to run on the CPU: block by block, a thread of it is a fiber.
// Between two barriers fibers run one after the other, in random order, so that a barrier that is
// missing shows.
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static thread_local

struct Place {
  unsigned x;
};
static thread_local Place threadIdx, blockIdx;

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float from_float16(unsigned short bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned short to_float16(float given) {
  _Float16 value = _Float16(given);
  unsigned short bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
namespace fake {

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 << 10);
  bool is_done = false;
};
static thread_local std::vector<Fiber> fibers;
static thread_local ucontext_t scheduler;
static thread_local void (*body)(void*);
static thread_local void* argument;

static void run_fiber(unsigned place) {
  body(argument);
  fibers[place].is_done = true;
  swapcontext(&fibers[place].context, &scheduler);
}

static void run_block(unsigned threads) {
  static thread_local unsigned draw = 1;
  fibers.resize(threads);
  for (unsigned i = 0; i < threads; i++) {
    Fiber& fiber = fibers[i];
    fiber.is_done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(run_fiber), 1, i);
  }
  std::vector<unsigned> order(threads);
  for (unsigned i = 0; i < threads; i++) order[i] = i;
  for (unsigned done = 0; done < threads;) {
    for (unsigned i = threads - 1; i; i--) {
      draw = draw * 1664525 + 1013904223;
      std::swap(order[i], order[(draw >> 8) % (i + 1)]);
    }
    done = 0;
    for (unsigned i : order) {
      threadIdx.x = i;
      swapcontext(&scheduler, &fibers[i].context);
      done += fibers[i].is_done;
    }
    if (done && done < threads) {
      std::fprintf(stderr, "%u of %u threads did not come to a barrier\n", done, threads);
      std::abort();
    }
  }
}

static void launch(unsigned blocks, unsigned threads, bool barriers, void (*kernel)(void*),
                   void* with) {
  body = kernel, argument = with;
  for (unsigned block = 0; block < blocks; block++) {
    blockIdx.x = block;
    if (barriers)
      run_block(threads);
    else
      for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) kernel(with);
  }
}

}  // namespace fake

inline void __syncthreads() {
  unsigned place = threadIdx.x;
  swapcontext(&fake::fibers[place].context, &fake::scheduler);
}
