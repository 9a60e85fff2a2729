// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ranges>
#include <span>
#include <type_traits>

#include "thinwire/core/dtype.h"

namespace thinwire {

namespace detail {

template <class R>
using element_t = std::remove_cv_t<std::ranges::range_value_t<R>>;

template <class R>
concept ElementRange = std::ranges::contiguous_range<R> &&
    std::ranges::sized_range<R> && requires {
  DTypeOf<element_t<R>>::value;
};

template <class R>
concept MutableElementRange = ElementRange<R> && !std::is_const_v<
    std::remove_reference_t<std::ranges::range_reference_t<R>>>;

/// Throws Error(kInvalidArgument) if `have` is not `want`.
void require_dtype(DType have, DType want);
/// Throws Error(kInvalidArgument) unless offset + count <= size.
void require_range(std::size_t offset, std::size_t count, std::size_t size);

}  // namespace detail

/// Read-only flat array of any DType: pointer, number of elements, dtype.
/// Owns nothing; the memory must outlive the view.
class ConstView {
 public:
  ConstView() = default;
  ConstView(const void* data, std::size_t size, DType dtype) noexcept
      : data_(data), size_(size), dtype_(dtype) {}

  /// From std::vector<float>, std::span<const Half>, std::array<...>, ...
  template <detail::ElementRange R>
  requires(!std::is_same_v<std::remove_cvref_t<R>, ConstView>)
      // NOLINTNEXTLINE(google-explicit-constructor): a vector is a view
      ConstView(R&& range)
  noexcept
      : ConstView(std::ranges::data(range), std::ranges::size(range),
                  dtype_of<detail::element_t<R>>) {}

  [[nodiscard]] const void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return size_ * size_of(dtype_);
  }

  /// The elements; throws Error(kInvalidArgument) if T is not the dtype.
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    detail::require_dtype(dtype_, dtype_of<T>);
    return {static_cast<const T*>(data_), size_};
  }

  /// Elements offset .. offset + count; throws Error(kInvalidArgument) if they
  /// are not all inside.
  [[nodiscard]] ConstView subview(std::size_t offset, std::size_t count) const {
    detail::require_range(offset, count, size_);
    return {static_cast<const std::byte*>(data_) + offset * size_of(dtype_),
            count, dtype_};
  }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  DType dtype_ = DType::kFloat32;
};

/// The same, writable.
class View {
 public:
  View() = default;
  View(void* data, std::size_t size, DType dtype) noexcept
      : data_(data), size_(size), dtype_(dtype) {}

  template <detail::MutableElementRange R>
  requires(!std::is_same_v<std::remove_cvref_t<R>, View>)
      // NOLINTNEXTLINE(google-explicit-constructor): a vector is a view
      View(R&& range)
  noexcept
      : View(std::ranges::data(range), std::ranges::size(range),
             dtype_of<detail::element_t<R>>) {}

  // NOLINTNEXTLINE(google-explicit-constructor): as T* to const T*
  operator ConstView() const noexcept { return {data_, size_, dtype_}; }

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return size_ * size_of(dtype_);
  }

  template <class T>
  [[nodiscard]] std::span<T> as() const {
    detail::require_dtype(dtype_, dtype_of<T>);
    return {static_cast<T*>(data_), size_};
  }

  [[nodiscard]] View subview(std::size_t offset, std::size_t count) const {
    detail::require_range(offset, count, size_);
    return {static_cast<std::byte*>(data_) + offset * size_of(dtype_), count,
            dtype_};
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  DType dtype_ = DType::kFloat32;
};

}  // namespace thinwire
