// SPDX-License-Identifier: Apache-2.0
#include "optim/state_parts.h"

#include <algorithm>

#include "core/ranges.h"

namespace thinwire::optim {

void StateParts::require(const char* array) const {
  if (from_ != nullptr && std::ranges::find(taken_, array) == taken_.end())
    static_cast<void>(from_->array(array));
}

std::int64_t StateParts::listed(const ScalarPart& part, std::int64_t value) {
  if (from_ == nullptr) {
    (part.is_own ? to_->own : to_->common).put_integer(part.name, value);
    return value;
  }
  return part.missing && !from_->has_scalar(part.name)
             ? *part.missing
             : from_->integer(part.name);
}

std::int64_t StateParts::integer(const ScalarPart& part, std::int64_t& value) {
  const std::int64_t saved = listed(part, value);
  set(value, std::int64_t{saved});
  return saved;
}

std::int64_t StateParts::count(const ScalarPart& part, std::int64_t& value) {
  const std::int64_t saved = integer(part, value);
  if (from_ != nullptr) require_count(part.name, saved);
  return saved;
}

bool StateParts::flag(const ScalarPart& part, bool& value) {
  const bool saved = listed(part, value ? 1 : 0) != 0;
  set(value, bool{saved});
  return saved;
}

double StateParts::real(const ScalarPart& part, double& value, Sign sign) {
  if (from_ == nullptr) {
    to_->common.put_real(part.name, value);
    return value;
  }
  const double saved = saved_real(*from_, part.name, sign);
  set(value, double{saved});
  return saved;
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
