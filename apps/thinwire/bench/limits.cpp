// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/limits.h"

#include <atomic>

namespace thinwire::apps::bench {

namespace {

// Streams that do not overlap. `restrict` works on parameters only, so each
// loop is a function of its pointers.
struct Streams {
  float* a = nullptr;
  float* b = nullptr;
  float* c = nullptr;
  const float* d = nullptr;
  std::size_t size = 0;
};

// The bodies are inlined into one function per instruction set and vectorized
// there.
#define THINWIRE_INLINE inline __attribute__((always_inline))

THINWIRE_INLINE void add(float* __restrict a, const float* __restrict d,
                         std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) a[i] += d[i];
}

THINWIRE_INLINE void add_one(float* a, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) a[i] += 1;
}

// All loads precede the stores. Otherwise arrays that begin at the same offset
// in their pages would seem to overlap.
THINWIRE_INLINE void add_three(float* __restrict a, float* __restrict b,
                               float* __restrict c, const float* __restrict d,
                               std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const float x = a[i] + d[i];
    const float y = b[i] + d[i];
    const float z = c[i] + d[i];
    a[i] = x;
    b[i] = y;
    c[i] = z;
  }
}

// Keeps several sums, because one alone could not keep up with the memory.
THINWIRE_INLINE float read(const float* d, std::size_t size) {
  constexpr std::size_t kSums = 64;
  float sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= size; i += kSums)
    for (std::size_t k = 0; k < kSums; ++k) sums[k] += d[i + k];
  for (; i < size; ++i) sums[0] += d[i];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

struct Loops {
  void (*add)(const Streams&);
  void (*add_three)(const Streams&);
  void (*add_one)(const Streams&);
  float (*read)(const Streams&);
};

#define THINWIRE_LOOPS(target, attribute)                                     \
  attribute void target##_add(const Streams& s) { add(s.a, s.d, s.size); }    \
  attribute void target##_add_three(const Streams& s) {                       \
    add_three(s.a, s.b, s.c, s.d, s.size);                                    \
  }                                                                           \
  attribute void target##_add_one(const Streams& s) { add_one(s.a, s.size); } \
  attribute float target##_read(const Streams& s) {                           \
    return read(s.d, s.size);                                                 \
  }                                                                           \
  constexpr Loops target##_loops = {target##_add, target##_add_three,         \
                                    target##_add_one, target##_read};

THINWIRE_LOOPS(plain, )
#if defined(__x86_64__)
THINWIRE_LOOPS(avx2, __attribute__((target("avx2"))))
THINWIRE_LOOPS(avx512, __attribute__((target("avx512f"))))
#endif

Loops best_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return avx512_loops;
  if (__builtin_cpu_supports("avx2")) return avx2_loops;
#endif
  return plain_loops;
}

}  // namespace

std::string_view to_string(Limit limit) noexcept {
  constexpr std::string_view kNames[] = {"a += b", "4R+3W", "read",
                                         "2 x (R+W)"};
  return kNames[static_cast<std::size_t>(limit)];
}

double bytes_per_element(Limit limit) noexcept {
  constexpr double kBytes[] = {12, 28, 4, 16};
  return kBytes[static_cast<std::size_t>(limit)];
}

Limits::Limits(std::size_t elements, ThreadPool& pool)
    : elements_(elements), pool_(pool) {}

float* Limits::array(std::size_t index) {
  Buffer& buffer = arrays_[index];
  if (buffer.empty()) buffer = Buffer::of<float>(elements_);
  return buffer.as<float>().data();
}

void Limits::run(Limit limit) {
  static const Loops loops = best_loops();
  static std::atomic<float> unused;  // keeps the reading loop
  float* const d = array(0);
  float* const a = limit == Limit::kRead ? nullptr : array(1);
  float* const b = limit == Limit::kAdamStreams ? array(2) : nullptr;
  float* const c = limit == Limit::kAdamStreams ? array(3) : nullptr;
  const auto pass = [&](std::size_t begin, std::size_t end) {
    const std::size_t size = end - begin;
    switch (limit) {
      case Limit::kAdd:
        return loops.add({.a = a + begin, .d = d + begin, .size = size});
      case Limit::kAdamStreams:
        return loops.add_three(
            {a + begin, b + begin, c + begin, d + begin, size});
      case Limit::kTwice:
        return loops.add_one({.a = a + begin, .size = size});
      case Limit::kRead:
        unused = loops.read({.d = d + begin, .size = size});
    }
  };
  const int passes = limit == Limit::kTwice ? 2 : 1;
  for (int i = 0; i < passes; ++i)
    pool_.for_ranges(elements_, kPieceElements, pass);
}

}  // namespace thinwire::apps::bench
