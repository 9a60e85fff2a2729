// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/limits.h"

#include <atomic>

#include "apps/thinwire/bench/partition.h"

namespace thinwire::apps::bench {

namespace {

struct Streams {
  float* a = nullptr;
  float* b = nullptr;
  float* c = nullptr;
  const float* d = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The bodies are inlined into one function per instruction set and vectorized
// there.
#define THINWIRE_INLINE inline __attribute__((always_inline))

THINWIRE_INLINE void add(const Streams& s) {
  float* __restrict a = s.a;
  const float* __restrict d = s.d;
  for (std::size_t i = s.begin; i < s.end; ++i) a[i] += d[i];
}

THINWIRE_INLINE void add_three(const Streams& s) {
  float* __restrict a = s.a;
  float* __restrict b = s.b;
  float* __restrict c = s.c;
  const float* __restrict d = s.d;
  for (std::size_t i = s.begin; i < s.end; ++i) {
    a[i] += d[i];
    b[i] += d[i];
    c[i] += d[i];
  }
}

// Sums side by side, because one could not keep up with the memory.
THINWIRE_INLINE float read(const Streams& s) {
  constexpr std::size_t kSums = 128;
  float sums[kSums] = {};
  std::size_t i = s.begin;
  for (; i + kSums <= s.end; i += kSums)
    for (std::size_t k = 0; k < kSums; ++k) sums[k] += s.d[i + k];
  for (; i < s.end; ++i) sums[0] += s.d[i];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

struct Loops {
  void (*add)(const Streams&);
  void (*add_three)(const Streams&);
  float (*read)(const Streams&);
};

void plain_add(const Streams& s) { add(s); }
void plain_add_three(const Streams& s) { add_three(s); }
float plain_read(const Streams& s) { return read(s); }

#if defined(__x86_64__)
#define THINWIRE_AVX2 __attribute__((target("avx2")))
#define THINWIRE_AVX512 __attribute__((target("avx512f")))
THINWIRE_AVX2 void avx2_add(const Streams& s) { add(s); }
THINWIRE_AVX2 void avx2_add_three(const Streams& s) { add_three(s); }
THINWIRE_AVX2 float avx2_read(const Streams& s) { return read(s); }
THINWIRE_AVX512 void avx512_add(const Streams& s) { add(s); }
THINWIRE_AVX512 void avx512_add_three(const Streams& s) { add_three(s); }
THINWIRE_AVX512 float avx512_read(const Streams& s) { return read(s); }
#endif

Loops best_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f"))
    return {avx512_add, avx512_add_three, avx512_read};
  if (__builtin_cpu_supports("avx2"))
    return {avx2_add, avx2_add_three, avx2_read};
#endif
  return {plain_add, plain_add_three, plain_read};
}

}  // namespace

std::string_view to_string(Limit limit) noexcept {
  switch (limit) {
    case Limit::kAdd:
      return "a += b";
    case Limit::kAdamStreams:
      return "4R+3W";
    case Limit::kRead:
      return "read";
  }
  return "";
}

double bytes_per_element(Limit limit) noexcept {
  switch (limit) {
    case Limit::kAdd:
      return 12;
    case Limit::kAdamStreams:
      return 28;
    case Limit::kRead:
      return 4;
  }
  return 0;
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
  Streams all{.d = array(0)};
  if (limit != Limit::kRead) all.a = array(1);
  if (limit == Limit::kAdamStreams) {
    all.b = array(2);
    all.c = array(3);
  }
  pool_.for_ranges(elements_, kPieceElements,
                   [&](std::size_t begin, std::size_t end) {
                     Streams part = all;
                     part.begin = begin;
                     part.end = end;
                     switch (limit) {
                       case Limit::kAdd:
                         return loops.add(part);
                       case Limit::kAdamStreams:
                         return loops.add_three(part);
                       case Limit::kRead:
                         unused = loops.read(part);
                     }
                   });
}

}  // namespace thinwire::apps::bench
