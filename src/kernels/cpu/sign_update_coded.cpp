// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"
#include "thinwire/kernels/denominator_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_update_coded.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/signs-inl.h"
#include "kernels/cpu/split_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

// Looks up table[index] in a table of 16 entries, which stays in registers with
// 16 or 8 lanes.
template <class D>
HWY_INLINE hn::Vec<D> look_up(D d, const float* table, hn::Vec<Int<D>> index) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    return hn::TableLookupLanes(hn::Load(d, table),
                                hn::IndicesFromVec(d, index));
  } else if constexpr (hn::MaxLanes(D()) == 8) {
    const Int<D> di;
    const auto within = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, 7)));
    const auto lower = hn::TableLookupLanes(hn::Load(d, table), within);
    const auto upper = hn::TableLookupLanes(hn::Load(d, table + 8), within);
    const auto is_upper = hn::RebindMask(d, hn::Gt(index, hn::Set(di, 7)));
    return hn::IfThenElse(is_upper, upper, lower);
  } else {
    return hn::GatherIndex(d, table, index);
  }
}

// Returns the codes from element i on. They do not cross a multiple of 16.
template <class D>
HWY_INLINE hn::Vec<Int<D>> codes_at(D, const std::uint8_t* codes, std::size_t i,
                                    std::bool_constant<true>) {
  const hn::Rebind<std::uint8_t, D> bytes;
  return hn::PromoteTo(Int<D>(), hn::LoadU(bytes, codes + i));
}

template <class D>
HWY_INLINE hn::Vec<Int<D>> codes_at(D, const std::uint8_t* codes, std::size_t i,
                                    std::bool_constant<false>) {
  const hn::Rebind<std::uint8_t, D> bytes;
  const Int<D> di;
  const auto pairs =
      hn::PromoteTo(di, hn::LoadU(bytes, codes + i / 32 * 16 + i % 16));
  return i % 32 < 16 ? hn::And(pairs, hn::Set(di, 15))
                     : hn::ShiftRight<4>(pairs);
}

struct WholeParams {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::size_t i) const {
    return hn::LoadU(d, params + i);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> p, std::size_t i) const {
    hn::StoreU(p, d, params + i);
  }
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(params + i, count);
  }
  float* params;
};

struct SplitParams {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::size_t i) const {
    return load_split(d, high + i, low + i);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> p, std::size_t i) const {
    store_split(d, p, high + i, low + i);
  }
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(high + i, count);
    prefetch_ahead(low + i, count);
  }
  BFloat16* high;
  std::uint16_t* low;
};

template <class Params, bool kEightBits, bool kSigns>
struct CodedUpdate {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    params.prefetch(i, count);
    prefetch_ahead(codes + (kEightBits ? i : i / 2), count / 2);
  }

  HWY_INLINE void operator()(std::size_t w, std::uint32_t /*active*/,
                             std::size_t count) const {
    const Part part{*this, kSigns ? m.signs.words[w] : 0, w * 32};
    for_each_part(count, part);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const std::size_t i = first + j;
      const Int<D> di;
      const auto code =
          codes_at(d, of.codes, i, std::bool_constant<kEightBits>());
      // The table's value for code 0 is ignored.
      const auto k = hn::And(hn::Sub(code, hn::Set(di, 1)), hn::Set(di, 255));
      const auto fine =
          look_up(d, of.tables.fine.data(), hn::And(k, hn::Set(di, 15)));
      const auto coarse =
          kEightBits ? look_up(d, of.tables.coarse.data(), hn::ShiftRight<4>(k))
                     : hn::Set(d, of.tables.coarse[0]);
      const auto product =
          hn::Mul(scaled_momentum(d, i, j), hn::Mul(coarse, fine));
      const auto takes_part = hn::RebindMask(d, hn::Ne(code, hn::Zero(di)));
      const auto p = of.params.load(d, i);
      const auto u =
          of.decoupled.add(d, hn::IfThenElseZero(takes_part, product), p);
      of.params.store(
          d, hn::Add(p, hn::Mul(hn::Set(d, of.c.minus_learning_rate), u)), i);
    }

    template <class D>
    HWY_INLINE hn::Vec<D> scaled_momentum(D d, std::size_t i,
                                          std::size_t j) const {
      if constexpr (kSigns) return signed_value(d, of.scaled, word, j);
      return hn::Mul(hn::LoadU(d, of.m.values + i),
                     hn::Set(d, of.c.exp_avg_scale));
    }

    const CodedUpdate& of;
    std::uint32_t word;
    std::size_t first;
  };

  Params params;
  const std::uint8_t* codes;
  MomentumForm m;
  InverseTables tables;
  AdamCoefficients c;
  Decay decoupled{c.decoupled_decay};
  float scaled = m.signs.scale * c.exp_avg_scale;
};

template <class Params, bool kEightBits, bool kSigns>
void update_of(Params params, const MomentumForm& m, const CodedUpdateArrays& a,
               const AdamCoefficients& c) {
  CodedUpdate<Params, kEightBits, kSigns> update{params, a.codes, m,
                                                 inverse_tables(a.range), c};
  for_each_word(a.size, nullptr, update);
}

template <class Params>
void update_params(Params params, const MomentumForm& m,
                   const CodedUpdateArrays& a, const AdamCoefficients& c) {
  const bool signs = m.values == nullptr;
  if (a.bits == 8)
    signs ? update_of<Params, true, true>(params, m, a, c)
          : update_of<Params, true, false>(params, m, a, c);
  else
    signs ? update_of<Params, false, true>(params, m, a, c)
          : update_of<Params, false, false>(params, m, a, c);
}

void run_update(const MomentumForm& m, const CodedUpdateArrays& a,
                const AdamCoefficients& c) {
  if (a.params != nullptr)
    update_params(WholeParams{a.params}, m, a, c);
  else
    update_params(SplitParams{a.high, a.low}, m, a, c);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_update);

void sign_update_coded(const MomentumForm& m, const CodedUpdateArrays& arrays,
                       const AdamCoefficients& c) {
  require_coded_update(m, arrays);
  THINWIRE_DISPATCH(run_update)(m, arrays, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
