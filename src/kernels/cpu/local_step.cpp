// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/local_step.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/local_step.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

// G is the type of the gradients. L is the type of the low-precision copy, or
// void.
template <class G, class L>
struct LocalWord {
  LocalWord(const LocalStepArrays& arrays, float scale,
            const AdamCoefficients& coefficients)
      : a(arrays),
        grads(static_cast<const G*>(a.grads.data())),
        low_precision(static_cast<L*>(a.low_precision.data())),
        origin_scale(scale),
        c(coefficients) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(a.params + i, count);
    prefetch_ahead(a.origin + i, count);
    prefetch_ahead(a.exp_avg + i, count);
    prefetch_ahead(a.accumulated + i, count);
    prefetch_ahead(a.denominator + i, count);
    prefetch_ahead(grads + i, count);
  }

  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    const bool from_mean = a.mean.words != nullptr;
    const Part part{*this, w * 32, from_mean ? a.mean.words[w] : 0, active};
    for_each_part(count, part);
  }

  // The loop chooses between the forms at no cost, because it waits for memory
  // anyway.
  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const LocalStepArrays& a = of.a;
      const AdamCoefficients& c = of.c;
      const std::size_t i = first + j;
      const auto g = hn::Mul(load(d, of.grads + i), hn::Set(d, c.grad_scale));
      auto m = a.mean.words != nullptr ? signed_value(d, a.mean.scale, word, j)
                                       : hn::LoadU(d, a.exp_avg + i);
      m = next_momentum(d, m, g, c);
      if (HWY_UNLIKELY(active != kAllActive)) {
        m = hn::IfThenElseZero(lanes_of(d, active, j), m);
      }
      const auto sum =
          a.from_zero ? hn::Zero(d) : hn::LoadU(d, a.accumulated + i);
      // Adds the update to the sum in the same way as to a parameter.
      const auto u = next_param(d, sum, hn::Mul(m, hn::Set(d, c.exp_avg_scale)),
                                hn::LoadU(d, a.denominator + i), Decay(0), c);
      const auto origin = hn::LoadU(d, a.origin + i);
      hn::StoreU(m, d, a.exp_avg + i);
      hn::StoreU(u, d, a.accumulated + i);
      const auto kept = hn::Mul(origin, hn::Set(d, of.origin_scale));
      store_param(d, hn::Add(kept, u), a.params, of.low_precision, i);
    }

    const LocalWord& of;
    std::size_t first;
    std::uint32_t word;
    std::uint32_t active;
  };

  LocalStepArrays a;
  const G* grads;
  L* low_precision;
  float origin_scale;
  AdamCoefficients c;
};

template <class G, class L>
void local_step_as(const LocalStepArrays& arrays, float origin_scale,
                   const AdamCoefficients& c) {
  const LocalWord<G, L> word(arrays, origin_scale, c);
  for_each_word(arrays.grads.size(), arrays.active, word);
}

void run_local_step(const LocalStepArrays& arrays, float origin_scale,
                    const AdamCoefficients& c) {
  visit_floats(arrays.grads, [&]<class G>(const G*) {
    visit_low_precision(arrays.low_precision, [&]<class L>(L*) {
      local_step_as<G, L>(arrays, origin_scale, c);
    });
  });
}

template <class L>
struct SyncWord {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(a.params + i, count);
    prefetch_ahead(a.origin + i, count);
    prefetch_ahead(a.denominator + i, count);
  }

  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    const Part part{*this, w * 32, mean.words[w], active};
    for_each_part(count, part);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const SyncArrays& a = of.a;
      const std::size_t i = first + j;
      auto b = signed_value(d, of.mean.scale, word, j);
      if (HWY_UNLIKELY(active != kAllActive)) {
        b = hn::IfThenElseZero(lanes_of(d, active, j), b);
      }
      const auto kept =
          hn::Mul(hn::LoadU(d, a.origin + i), hn::Set(d, of.origin_scale));
      const auto next =
          hn::Add(kept, hn::Div(b, hn::LoadU(d, a.denominator + i)));
      hn::StoreU(next, d, a.origin + i);
      store_param(d, next, a.params, static_cast<L*>(a.low_precision.data()),
                  i);
    }

    const SyncWord& of;
    std::size_t first;
    std::uint32_t word;
    std::uint32_t active;
  };

  Signs mean;
  SyncArrays a;
  float origin_scale;
};

template <class L>
void sync_update_as(Signs mean, const std::uint32_t* active,
                    const SyncArrays& arrays, float origin_scale) {
  const SyncWord<L> word{mean, arrays, origin_scale};
  for_each_word(arrays.size, active, word);
}

void run_sync_update(Signs mean, const std::uint32_t* active,
                     const SyncArrays& arrays, float origin_scale) {
  visit_low_precision(arrays.low_precision, [&]<class L>(L*) {
    sync_update_as<L>(mean, active, arrays, origin_scale);
  });
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_local_step);
HWY_EXPORT(run_sync_update);

void local_step(const LocalStepArrays& arrays, float origin_scale,
                const AdamCoefficients& c) {
  require_grads(arrays.grads);
  require_low_precision(arrays.low_precision, arrays.grads.size());
  THINWIRE_DISPATCH(run_local_step)(arrays, origin_scale, c);
}

void sync_update(Signs mean, const std::uint32_t* active,
                 const SyncArrays& arrays, float origin_scale) {
  require_low_precision(arrays.low_precision, arrays.size);
  THINWIRE_DISPATCH(run_sync_update)(mean, active, arrays, origin_scale);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
