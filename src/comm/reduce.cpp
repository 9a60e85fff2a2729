// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <algorithm>
#include <type_traits>

namespace thinwire::comm {
namespace {

// Defines the type in which values are added, and the conversions to and from
// this type.
template <class T>
struct Traits {
  using Accumulator = T;
  static T widen(T value) { return value; }
  static T narrow(T value) { return value; }
};
template <>
struct Traits<Half> {
  using Accumulator = float;
  static float widen(Half value) { return to_float(value); }
  static Half narrow(float value) { return to_half(value); }
};
template <>
struct Traits<BFloat16> {
  using Accumulator = float;
  static float widen(BFloat16 value) { return to_float(value); }
  static BFloat16 narrow(float value) { return to_bfloat16(value); }
};

// A reduction calls apply() for every further source, then finish() once.
struct Sum {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      // Unsigned arithmetic wraps around, whereas signed overflow is undefined.
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(
          static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
  template <class A>
  static A finish(A sum, A /*one_share*/) {
    return sum;
  }
};

struct Mean : Sum {
  template <class A>
  static A finish(A sum, A one_share) {
    return sum * one_share;
  }
};

struct Max {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      return a > b || a != a ? a : b;  // keeps a NaN from either side
    } else {
      return std::max(a, b);
    }
  }
  template <class A>
  static A finish(A largest, A /*one_share*/) {
    return largest;
  }
};

// Adds one source. This is a separate function without aliases, because GCC 12
// vectorizes only some inlined copies of the loop.
template <class T, class Op, class A>
[[gnu::noinline]] void take_in(const T* __restrict next, A* __restrict sum,
                               std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    sum[i] = Op::apply(sum[i], Traits<T>::widen(next[i]));
}

// Reduces block by block, so that the accumulators stay in the first-level
// cache and every source is read once.
template <class T, class Out, class Op>
void reduce_into(int ranks, std::span<const void* const> sources, View output) {
  using Accumulator = typename Traits<T>::Accumulator;
  constexpr std::size_t kBlock = 1024;
  const auto one_share =
      static_cast<Accumulator>(1.0 / static_cast<double>(ranks));
  Accumulator sum[kBlock];
  for (std::size_t begin = 0; begin < output.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, output.size() - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    for (std::size_t i = 0; i < n; ++i) sum[i] = Traits<T>::widen(first[i]);
    for (const void* source : sources.subspan(1))
      take_in<T, Op>(static_cast<const T*>(source) + begin, sum, n);
    Out* out = static_cast<Out*>(output.data()) + begin;
    for (std::size_t i = 0; i < n; ++i)
      out[i] = Traits<Out>::narrow(Op::finish(sum[i], one_share));
  }
}

// Maxima are never widened to fp32.
template <class T, class Op>
void reduce_half(int ranks, std::span<const void* const> sources, View output) {
  if constexpr (!std::is_same_v<Op, Max>) {
    if (output.dtype() == DType::kFloat32)
      return reduce_into<T, float, Op>(ranks, sources, output);
  }
  reduce_into<T, T, Op>(ranks, sources, output);
}

// Reduces fp32 sums that an earlier step left unrounded, and rounds the result
// to the output's dtype.
template <class Op>
void reduce_float(int ranks, std::span<const void* const> sources,
                  View output) {
  switch (output.dtype()) {
    case DType::kFloat16:
      return reduce_into<float, Half, Op>(ranks, sources, output);
    case DType::kBFloat16:
      return reduce_into<float, BFloat16, Op>(ranks, sources, output);
    default:
      return reduce_into<float, float, Op>(ranks, sources, output);
  }
}

template <class Op>
void reduce_floats(const Reducer& reducer, std::span<const void* const> sources,
                   View output) {
  switch (reducer.dtype) {
    case DType::kFloat32:
      return reduce_float<Op>(reducer.ranks, sources, output);
    case DType::kFloat16:
      return reduce_half<Half, Op>(reducer.ranks, sources, output);
    case DType::kBFloat16:
      return reduce_half<BFloat16, Op>(reducer.ranks, sources, output);
    case DType::kFloat64:
      return reduce_into<double, double, Op>(reducer.ranks, sources, output);
    default:
      return;
  }
}

template <class Op>
void reduce_any(const Reducer& reducer, std::span<const void* const> sources,
                View output) {
  switch (reducer.dtype) {
    case DType::kInt32:
      return reduce_into<std::int32_t, std::int32_t, Op>(reducer.ranks, sources,
                                                         output);
    case DType::kInt64:
      return reduce_into<std::int64_t, std::int64_t, Op>(reducer.ranks, sources,
                                                         output);
    case DType::kUInt8:
      return reduce_into<std::uint8_t, std::uint8_t, Op>(reducer.ranks, sources,
                                                         output);
    default:
      return reduce_floats<Op>(reducer, sources, output);
  }
}

}  // namespace

void reduce_in_order(const Reducer& reducer,
                     std::span<const void* const> sources, View output) {
  switch (reducer.op) {
    case ReduceOp::kSum:
      return reduce_any<Sum>(reducer, sources, output);
    case ReduceOp::kMax:
      return reduce_any<Max>(reducer, sources, output);
    case ReduceOp::kMean:
      return reduce_floats<Mean>(reducer, sources, output);
  }
}

DType sum_dtype(ReduceOp op, DType dtype) noexcept {
  const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  return is_half && op != ReduceOp::kMax ? DType::kFloat32 : dtype;
}

}  // namespace thinwire::comm
