// SPDX-License-Identifier: Apache-2.0
// Kernels dequantize(), dequantize_add() and quantized_average().
#include "thinwire/kernels/quantize.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dequantize.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/codes-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Calls part(tag, j) for the first `count` elements of one word.
template <class Part>
HWY_INLINE void for_each_eight(std::size_t count, Part& part) {
  const EightFloats d;
  if (HWY_LIKELY(count == 32)) {
    for (std::size_t j = 0; j < 32; j += hn::MaxLanes(d)) part(d, j);
  } else {
    for (std::size_t j = 0; j < count; ++j) part(OneFloat(), j);
  }
}

struct DequantizeWord {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    const Part part{reader, step, w * 32, out};
    for_each_eight(count, part);
    zero_masked(out + w * 32, active, count);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const auto q = reader.at(d, first + j);
      hn::StoreU(hn::Mul(q, hn::Set(d, step)), d, out + first + j);
    }

    const CodeReader& reader;
    float step;
    std::size_t first;
    float* out;
  };

  CodeReader reader;
  float step;
  float* out;
};

void run_dequantize(Quantized q, int bits, const std::uint32_t* active,
                    float* out, std::size_t size) {
  const DequantizeWord word{CodeReader(q.words, bits), q.step, out};
  for_each_word(size, active, word);
}

template <class T>
struct AddWord {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(values + i, count);
  }

  HWY_INLINE void operator()(std::size_t w, std::uint32_t,
                             std::size_t count) const {
    const Part part{*this, w * 32};
    for_each_eight(count, part);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      T* const at = of.values + first + j;
      const auto sent =
          hn::Mul(of.reader.at(d, first + j), hn::Set(d, of.step));
      store(d, hn::Add(load(d, at), sent), at);
    }

    const AddWord& of;
    std::size_t first;
  };

  CodeReader reader;
  float step;
  T* values;
};

template <class T>
void dequantize_add_as(Quantized q, int bits, View values) {
  const AddWord<T> word{CodeReader(q.words, bits), q.step,
                        static_cast<T*>(values.data())};
  for_each_word(values.size(), nullptr, word);
}

void run_dequantize_add(Quantized q, int bits, View values) {
  visit_floats(values,
               [&]<class T>(T*) { dequantize_add_as<T>(q, bits, values); });
}

struct AverageWord {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    if (HWY_LIKELY(count == 32)) {
      add_up<EightFloats, 32 / hn::MaxLanes(EightFloats())>(w * 32);
    } else {
      for (std::size_t j = 0; j < count; ++j) add_up<OneFloat, 1>(w * 32 + j);
    }
    zero_masked(out + w * 32, active, count);
  }

  /// Dequantizes kVectors vectors from element i on, which stay in registers.
  template <class D, std::size_t kVectors>
  HWY_INLINE void add_up(std::size_t i) const {
    const D d;
    constexpr std::size_t kStep = hn::MaxLanes(D());
    hn::Vec<D> sum[kVectors];
    for (auto& part : sum) part = hn::Zero(d);
    for (const Quantized& q : received) {
      const CodeReader reader(q.words, bits);
      const auto step = hn::Set(d, q.step * inverse_count);
      for (std::size_t k = 0; k < kVectors; ++k) {
        sum[k] = hn::Add(sum[k], hn::Mul(reader.at(d, i + k * kStep), step));
      }
    }
    for (std::size_t k = 0; k < kVectors; ++k) {
      hn::StoreU(sum[k], d, out + i + k * kStep);
    }
  }

  std::span<const Quantized> received;
  int bits;
  float inverse_count;
  float* out;
};

void run_quantized_average(std::span<const Quantized> received, int bits,
                           float inverse_count, const std::uint32_t* active,
                           float* out, std::size_t size) {
  const AverageWord word{received, bits, inverse_count, out};
  for_each_word(size, active, word);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_dequantize);
HWY_EXPORT(run_dequantize_add);
HWY_EXPORT(run_quantized_average);

void dequantize(Quantized q, int bits, const std::uint32_t* active, float* out,
                std::size_t size) {
  require_bits(bits);
  THINWIRE_DISPATCH(run_dequantize)(q, bits, active, out, size);
}

void dequantize_add(Quantized q, int bits, View values) {
  require_bits(bits);
  require_floats("values", values, values.size());
  THINWIRE_DISPATCH(run_dequantize_add)(q, bits, values);
}

void quantized_average(std::span<const Quantized> received, int bits,
                       float inverse_count, const std::uint32_t* active,
                       float* out, std::size_t size) {
  require_bits(bits);
  THINWIRE_DISPATCH(run_quantized_average)
  (received, bits, inverse_count, active, out, size);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
