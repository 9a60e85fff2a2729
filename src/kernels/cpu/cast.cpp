// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include <cstring>
#include <type_traits>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cast.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

template <class F, class T>
struct ConvertStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(from + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    store(d, load(d, from + i), to + i);
  }

  const F* from;
  T* to;
};

template <class T, class S>
struct AccumulateStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(sum + i, count);
    prefetch_ahead(values + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    store(d, hn::Add(load(d, sum + i), load(d, values + i)), sum + i);
  }

  const T* values;
  S* sum;
};

// Converts between different types; the caller copies if the types are equal.
void run_convert(ConstView from, View to) {
  visit_floats(from, [&]<class F>(const F* f) {
    visit_floats(to, [&]<class T>(T* t) {
      if constexpr (!std::is_same_v<F, T>)
        run_vectors<ConvertStep<F, T>>(to.size(), f, t);
    });
  });
}

void run_accumulate(ConstView values, View sum) {
  visit_floats(values, [&]<class T>(const T* v) {
    visit_floats(sum, [&]<class S>(S* s) {
      run_vectors<AccumulateStep<T, S>>(sum.size(), v, s);
    });
  });
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_convert);
HWY_EXPORT(run_accumulate);

namespace {

// Calls body(part of a, part of b) for each pair of parts in which both views
// have one dtype.
template <class Body>
void for_parts(ConstView a, View b, const Body& body) {
  const std::size_t cut = a.is_joined() ? a.first_size() : b.first_size();
  body(a.subview(0, cut), b.subview(0, cut));
  body(a.subview(cut, a.size() - cut), b.subview(cut, b.size() - cut));
}

bool is_joined(ConstView a, ConstView b) {
  return a.size() == b.size() && (a.is_joined() || b.is_joined());
}

}  // namespace

void convert(ConstView from, View to) {
  if (is_joined(from, to)) return for_parts(from, to, convert);
  require_floats("from", from, from.size());
  require_floats("to", to, from.size());
  if (from.dtype() != to.dtype()) {
    THINWIRE_DISPATCH(run_convert)(from, to);
  } else if (!from.empty()) {
    // memmove() allows both views to be the same memory.
    std::memmove(to.data(), from.data(), from.bytes());
  }
}

void accumulate(View sum, ConstView values) {
  if (is_joined(values, sum))
    return for_parts(values, sum,
                     [](ConstView v, View s) { accumulate(s, v); });
  require_floats("sum", sum, sum.size());
  require_floats("values", values, sum.size());
  THINWIRE_DISPATCH(run_accumulate)(values, sum);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
