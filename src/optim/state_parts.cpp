// SPDX-License-Identifier: Apache-2.0
#include "optim/state_parts.h"

#include <algorithm>

#include "core/ranges.h"

namespace thinwire::optim {

void StateParts::require(const char* array) const {
  if (from_ != nullptr && std::ranges::find(taken_, array) == taken_.end())
    static_cast<void>(from_->array(array));
}

std::int64_t StateParts::saved_or(const ScalarPart& part, std::int64_t value) {
  if (from_ == nullptr) {
    (part.is_own ? to_->own : to_->common).put_integer(part.name, value);
    return value;
  }
  return part.missing && !from_->has_scalar(part.name)
             ? *part.missing
             : from_->integer(part.name);
}

void StateParts::elements(const ArrayPart& part, Buffer& values) {
  if (from_ == nullptr)
    return save(part, Axis::kElement, std::as_const(values).view());
  set(values, take_floats(*from_, part.name, part.dtype,
                          total_size(part.ranges), part.sign));
  taken_.emplace_back(part.name);
}

void StateParts::save(const ArrayPart& part, Axis axis, ConstView values) {
  to_->arrays.push_back({.name = part.name,
                         .dtype = values.dtype(),
                         .axis = axis,
                         .sharing = part.sharing,
                         .size = values.size(),
                         .ranges = part.ranges,
                         .is_parameters = part.is_parameters,
                         .read = StateArray::from(values)});
}

}  // namespace thinwire::optim
