// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/ordered_sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

template <class T>
double sum_of(Term term, const T* x, std::size_t size) {
  OrderedSum sum(term);
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16) {
    prefetch_ahead(x + i, 16);
    sum.add_group(x + i);
  }
  return sum.total(x + i, size - i);
}

double sum_of_any(Term term, ConstView x) {
  switch (x.dtype()) {
    case DType::kFloat16:
      return sum_of(term, static_cast<const Half*>(x.data()), x.size());
    case DType::kBFloat16:
      return sum_of(term, static_cast<const BFloat16*>(x.data()), x.size());
    default:
      return sum_of(term, static_cast<const float*>(x.data()), x.size());
  }
}

double run_sum_of_squares(ConstView x) { return sum_of_any(Term::kSquare, x); }

double run_sum_of_abs(ConstView x) { return sum_of_any(Term::kAbs, x); }

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sum_of_squares);
HWY_EXPORT(run_sum_of_abs);

namespace {

ConstView chunk_of(ConstView values, std::size_t chunk) {
  require_chunk(values, chunk);
  const std::size_t begin = chunk * kSumChunk;
  return values.subview(begin, std::min(kSumChunk, values.size() - begin));
}

}  // namespace

double chunk_sum_of_squares(ConstView values, std::size_t chunk) {
  return HWY_DYNAMIC_DISPATCH(run_sum_of_squares)(chunk_of(values, chunk));
}

double chunk_sum_of_abs(ConstView values, std::size_t chunk) {
  return HWY_DYNAMIC_DISPATCH(run_sum_of_abs)(chunk_of(values, chunk));
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
