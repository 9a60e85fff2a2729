// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/state_dict.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "thinwire/core/error.h"

namespace thinwire {

namespace {

template <class T>
const T& scalar(
    const std::map<std::string, StateDict::Scalar, std::less<>>& all,
    std::string_view name, const char* kind) {
  const auto found = all.find(name);
  if (found == all.end())
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("state has no scalar '{}'", name));
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("state '{}' is not {}", name, kind));
  return *value;
}

}  // namespace

void StateDict::put(const std::string& name, ConstView values) {
  Buffer copy(values.size(), values.dtype());
  if (values.bytes() != 0)
    std::memcpy(copy.data(), values.data(), values.bytes());
  arrays_.insert_or_assign(name, std::move(copy));
}

void StateDict::put(const std::string& name, Buffer&& values) {
  arrays_.insert_or_assign(name, std::move(values));
}

Buffer StateDict::take(std::string_view name) {
  static_cast<void>(array(name));
  return std::move(arrays_.extract(arrays_.find(name)).mapped());
}

void StateDict::erase(std::string_view name) {
  if (const auto found = arrays_.find(name); found != arrays_.end())
    arrays_.erase(found);
  if (const auto found = scalars_.find(name); found != scalars_.end())
    scalars_.erase(found);
}

void StateDict::put_integer(const std::string& name, std::int64_t value) {
  scalars_.insert_or_assign(name, value);
}

void StateDict::put_real(const std::string& name, double value) {
  scalars_.insert_or_assign(name, value);
}

void StateDict::put_text(const std::string& name, std::string value) {
  scalars_.insert_or_assign(name, std::move(value));
}

void StateDict::put_scalar(const std::string& name, Scalar value) {
  scalars_.insert_or_assign(name, std::move(value));
}

void StateDict::put_all(const std::string& prefix, const StateDict& other) {
  for (const auto& [name, values] : other.arrays_)
    put(prefix + name, values.view());
  for (const auto& [name, value] : other.scalars_)
    scalars_.insert_or_assign(prefix + name, value);
}

StateDict StateDict::part(std::string_view prefix) const {
  StateDict found;
  for (const auto& [name, values] : arrays_)
    if (name.starts_with(prefix))
      found.put(name.substr(prefix.size()), values.view());
  for (const auto& [name, value] : scalars_)
    if (name.starts_with(prefix))
      found.scalars_.insert_or_assign(name.substr(prefix.size()), value);
  return found;
}

bool StateDict::has_array(std::string_view name) const {
  return arrays_.find(name) != arrays_.end();
}

bool StateDict::has_scalar(std::string_view name) const {
  return scalars_.find(name) != scalars_.end();
}

ConstView StateDict::array(std::string_view name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end())
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("state has no array '{}'", name));
  return found->second.view();
}

ConstView StateDict::array(std::string_view name, DType dtype,
                           std::size_t size) const {
  const ConstView values = array(name);
  if (values.dtype() != dtype || values.size() != size)
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("state array '{}' must be {} of {} elements, got {} of {}",
                    name, to_string(dtype), size, to_string(values.dtype()),
                    values.size()));
  return values;
}

std::int64_t StateDict::integer(std::string_view name) const {
  return scalar<std::int64_t>(scalars_, name, "an integer");
}

double StateDict::real(std::string_view name) const {
  return scalar<double>(scalars_, name, "a real number");
}

const std::string& StateDict::text(std::string_view name) const {
  return scalar<std::string>(scalars_, name, "a text");
}

}  // namespace thinwire
