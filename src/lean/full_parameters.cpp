// SPDX-License-Identifier: Apache-2.0
#include "lean/full_parameters.h"

#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/split_float.h"

namespace thinwire::lean {

namespace {

// Serves as a 16-bit type for views. Nobody reads these bits as floats.
constexpr DType kSixteenBits = DType::kBFloat16;

}  // namespace

Buffer FullParameters::make_low_bits(std::size_t size) {
  return Buffer(size, kSixteenBits);
}

std::span<std::uint16_t> FullParameters::bits_of(Buffer& buffer) {
  return {static_cast<std::uint16_t*>(buffer.data()), buffer.size()};
}

void FullParameters::begin() {
  if (are_split()) low_bits_ = make_low_bits(params_.size());
}

std::span<const std::uint16_t> FullParameters::low_bits() const {
  return {static_cast<const std::uint16_t*>(low_bits_.data()),
          low_bits_.size()};
}

void FullParameters::read(Range range, std::span<float> to) const {
  const View own = params_.subview(range.offset, range.size);
  if (low_bits_.empty()) return kernels::convert(own, to);
  kernels::join_float(own.as<BFloat16>().data(),
                      low_bits().data() + range.offset, to.data(), range.size);
}

void FullParameters::write(Range range, std::span<const float> values) {
  const View own = params_.subview(range.offset, range.size);
  if (low_bits_.empty()) return kernels::convert(values, own);
  kernels::split_float(values.data(), own.as<BFloat16>().data(),
                       bits_of(low_bits_).data() + range.offset, range.size);
}

void FullParameters::point(Range range, kernels::CodedUpdateArrays& arrays) {
  const View own = params_.subview(range.offset, range.size);
  if (!are_split()) {
    arrays.params = own.as<float>().data();
    return;
  }
  arrays.high = own.as<BFloat16>().data();
  arrays.low = bits_of(low_bits_).data() + range.offset;
}

}  // namespace thinwire::lean
