// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::torch {

/// Values as bytes for another rank of the same program. Writer and reader call
/// the same function, which lists the fields:
///   void list(HostBytes& bytes, Report& report) {
///     bytes(report.path, report.step);
///   }
class HostBytes {
 public:
  HostBytes() = default;  ///< Makes an object that writes values.
  /// Makes an object that reads the bytes of another.
  explicit HostBytes(std::string bytes)
      : reads_(true), bytes_(std::move(bytes)) {}

  /// Writes the values, or replaces them by the bytes that are read.
  template <class... Values>
  void operator()(Values&... values) {
    (one(values), ...);
  }
  [[nodiscard]] const std::string& text() const noexcept { return bytes_; }

 private:
  void raw(void* data, std::size_t size) {
    if (size == 0) return;
    if (!reads_) {
      bytes_.append(static_cast<const char*>(data), size);
      return;
    }
    std::memcpy(data, bytes_.data() + at_, size);
    at_ += size;
  }

  template <class Value>
  void one(Value& value) {
    if constexpr (std::is_trivially_copyable_v<Value>)
      raw(&value, sizeof value);
    else
      list(*this, value);
  }
  void one(std::string& text) {
    std::size_t size = text.size();
    (*this)(size);
    text.resize(size);
    raw(text.data(), size);
  }
  template <class Value>
  void one(std::vector<Value>& values) {
    std::size_t size = values.size();
    (*this)(size);
    values.resize(size);
    for (Value& value : values) (*this)(value);
  }
  template <class Value>
  void one(std::optional<Value>& value) {
    bool has_value = value.has_value();
    (*this)(has_value);
    if (!has_value) return value.reset();
    if (!value) value.emplace();
    (*this)(*value);
  }
  void one(Buffer& array) {
    std::size_t size = array.size();
    DType dtype = array.dtype();
    (*this)(size, dtype);
    if (reads_) array = Buffer(size, dtype);
    raw(array.data(), array.bytes());
  }
  void one(StateDict::Scalar& scalar) {
    std::size_t type = scalar.index();
    (*this)(type);
    if (reads_ && type == 1) scalar = 0.0;
    if (reads_ && type == 2) scalar = std::string();
    std::visit([this](auto& value) { (*this)(value); }, scalar);
  }
  void one(StateDict& state) {
    std::vector<std::string> names;
    for (const auto& item : state.scalars()) names.push_back(item.first);
    (*this)(names);
    for (const std::string& name : names) {
      StateDict::Scalar scalar;
      if (!reads_) scalar = state.scalars().at(name);
      (*this)(scalar);
      state.put_scalar(name, std::move(scalar));
    }
    names.clear();
    for (const auto& item : state.arrays()) names.push_back(item.first);
    (*this)(names);
    for (const std::string& name : names) {
      Buffer array;
      if (!reads_) array = state.take(name);
      (*this)(array);
      state.put(name, std::move(array));
    }
  }

  bool reads_ = false;
  std::string bytes_;
  std::size_t at_ = 0;  // position of the next value
};

}  // namespace thinwire::torch
