// SPDX-License-Identifier: Apache-2.0
#include "engine/gradient_marks.h"

#include <algorithm>
#include <cstring>

namespace thinwire::engine {

namespace {

template <class Bits>
Bits bits_at(ConstView view, std::size_t element) {
  Bits bits;
  std::memcpy(
      &bits,
      static_cast<const std::byte*>(view.data()) + element * sizeof(Bits),
      sizeof(Bits));
  return bits;
}

std::uint32_t bits_of(ConstView view, std::size_t element) {
  const ConstView one = view.subview(element, 1);
  return one.bytes() == 4 ? bits_at<std::uint32_t>(one, 0)
                          : bits_at<std::uint16_t>(one, 0);
}

// Bits of infinity. Without the sign, the bits of finite values are smaller.
std::uint32_t infinity_of(DType dtype) {
  if (dtype == DType::kFloat32) return 0x7f800000;
  return dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
}

template <class Bits>
std::size_t first_finite(ConstView values, Range range) {
  const std::uint32_t infinity = infinity_of(values.dtype());
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  constexpr std::size_t kBlock = 64;
  for (std::size_t at = range.offset; at < range.end(); at += kBlock) {
    const std::size_t end = std::min(range.end(), at + kBlock);
    Bits any = 0;
    for (std::size_t i = at; i < end; ++i) any |= bits_at<Bits>(values, i);
    if ((any & kMagnitude) == 0) continue;
    for (std::size_t i = at; i < end; ++i) {
      const std::uint32_t magnitude = bits_at<Bits>(values, i) & kMagnitude;
      if (magnitude != 0 && magnitude < infinity) return i;
    }
  }
  return range.end();
}

// Returns the index of the element, or range.end() if there is none.
std::size_t first_finite_of(ConstView values, Range range) {
  const ConstView part = values.subview(range.offset, range.size);
  const Range all{0, range.size};
  return range.offset + (size_of(part.dtype()) == 4
                             ? first_finite<std::uint32_t>(part, all)
                             : first_finite<std::uint16_t>(part, all));
}

}  // namespace

GradientMarks::GradientMarks(const ParameterLayout& layout) : layout_(layout) {
  for (const Parameter& p : layout.parameters()) last_.push_back(p.offset);
}

void GradientMarks::remember(ConstView params, ConstView grads) {
  marks_.clear();
  for (std::size_t k = 0; k < last_.size(); ++k) {
    const Parameter& p = layout_.parameters()[k];
    if (p.size == 0) continue;
    Mark mark{.parameter = k, .element = p.offset};
    if (!grads.empty()) {
      // Begins at the element found last time, because rows before it may be
      // zero in every step.
      std::size_t found = first_finite_of(grads, {last_[k], 1});
      if (found != last_[k]) found = first_finite_of(grads, {p.offset, p.size});
      mark.has_gradient = found < p.offset + p.size;
      if (mark.has_gradient) {
        last_[k] = mark.element = found;
        mark.gradient = bits_of(grads, found);
      }
    }
    mark.param = bits_of(params, mark.element);
    marks_.push_back(mark);
  }
}

std::optional<GradientMarks::Change> GradientMarks::change(
    ConstView params, ConstView grads) const {
  for (const Mark& mark : marks_)
    if (mark.has_gradient && bits_of(grads, mark.element) != mark.gradient)
      return Change{mark.parameter, true};
  for (const Mark& mark : marks_)
    if (bits_of(params, mark.element) != mark.param)
      return Change{mark.parameter, false};
  return std::nullopt;
}

}  // namespace thinwire::engine
