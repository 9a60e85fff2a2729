// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/split_float.h"

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/split_float.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/split_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

struct SplitStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(values + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    store_split(d, hn::LoadU(d, values + i), high + i, low + i);
  }

  const float* values;
  BFloat16* high;
  std::uint16_t* low;
};

struct JoinStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(high + i, count);
    prefetch_ahead(low + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    hn::StoreU(load_split(d, high + i, low + i), d, values + i);
  }

  const BFloat16* high;
  const std::uint16_t* low;
  float* values;
};

void run_split_float(const float* values, BFloat16* high, std::uint16_t* low,
                     std::size_t size) {
  for_each_vector(size, SplitStep{values, high, low});
}

void run_join_float(const BFloat16* high, const std::uint16_t* low,
                    float* values, std::size_t size) {
  for_each_vector(size, JoinStep{high, low, values});
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_split_float);
HWY_EXPORT(run_join_float);

void split_float(const float* values, BFloat16* high, std::uint16_t* low,
                 std::size_t size) {
  THINWIRE_DISPATCH(run_split_float)(values, high, low, size);
}

void join_float(const BFloat16* high, const std::uint16_t* low, float* values,
                std::size_t size) {
  THINWIRE_DISPATCH(run_join_float)(high, low, values, size);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
