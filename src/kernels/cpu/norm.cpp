// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <algorithm>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/ordered_sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

template <bool kPrefetch, class T>
double sum_of(Term term, const T* x, std::size_t size) {
  OrderedSum sum(term);
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16) {
    if constexpr (kPrefetch) prefetch_ahead(x + i, 16);
    sum.add_group(x + i);
  }
  return sum.total(x + i, size - i);
}

template <bool kPrefetch, class T>
void sums_loop(Term term, ConstView values, double* sums) {
  const auto* x = static_cast<const T*>(values.data());
  const std::size_t size = values.size();
  for (std::size_t begin = 0; begin < size; begin += kSumChunk) {
    const std::size_t count = std::min(kSumChunk, size - begin);
    *sums++ = sum_of<kPrefetch>(term, x + begin, count);
  }
}

template <class T>
void sums_of(Term term, ConstView values, double* sums) {
  if (prefetches()) {
    sums_loop<true, T>(term, values, sums);
  } else {
    sums_loop<false, T>(term, values, sums);
  }
}

void sums_of_any(Term term, ConstView x, double* sums) {
  visit_floats(x, [&]<class T>(const T*) { sums_of<T>(term, x, sums); });
}

void run_sums_of_squares(ConstView x, double* sums) {
  sums_of_any(Term::kSquare, x, sums);
}

void run_sums_of_abs(ConstView x, double* sums) {
  sums_of_any(Term::kAbs, x, sums);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sums_of_squares);
HWY_EXPORT(run_sums_of_abs);

void chunk_sums_of_squares(ConstView values, std::span<double> sums) {
  require_chunks(values, sums.size());
  THINWIRE_DISPATCH(run_sums_of_squares)(values, sums.data());
}

void chunk_sums_of_abs(ConstView values, std::span<double> sums) {
  require_chunks(values, sums.size());
  THINWIRE_DISPATCH(run_sums_of_abs)(values, sums.data());
}

double sum_of_squares(ConstView values) {
  std::vector<double> sums(sum_chunks(values.size()));
  chunk_sums_of_squares(values, sums);
  return sum_of_chunks(sums);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
