// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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
/// Throws Error(kInvalidArgument) if `is_joined`.
void require_one_dtype(bool is_joined);
/// Throws Error(kInvalidArgument) unless offset + count <= size.
void require_range(std::size_t offset, std::size_t count, std::size_t size);

}  // namespace detail

/// A read-only flat array of any DType: a pointer, a number of elements and a
/// dtype. The memory belongs to the caller and must outlive the view.
///
/// joined() makes one view of two arrays of different dtypes, for example
/// 16-bit parameters followed by fp32 parameters. Only subview(), parts() and
/// dtype_at() reach the second array. Functions that read elements accept views
/// of one dtype and reject others.
class ConstView {
 public:
  ConstView() = default;
  ConstView(const void* data, std::size_t size, DType dtype) noexcept
      : data_(data), size_(size), dtype_(dtype) {}

  /// Views a contiguous range such as std::vector<float> or std::span<const
  /// Half>.
  template <detail::ElementRange R>
  requires(!std::is_same_v<std::remove_cvref_t<R>, ConstView>)
      // NOLINTNEXTLINE(google-explicit-constructor): a vector is a view
      ConstView(R&& range)
  noexcept
      : ConstView(std::ranges::data(range), std::ranges::size(range),
                  dtype_of<detail::element_t<R>>) {}

  /// Returns a view of the elements of `first`, followed by those of `second`.
  /// Each must have one dtype. If either is empty, returns the other.
  [[nodiscard]] static ConstView joined(ConstView first, ConstView second) {
    detail::require_one_dtype(first.is_joined() || second.is_joined());
    if (second.empty()) return first;
    if (first.empty()) return second;
    ConstView both(first.data_, first.size_ + second.size_, first.dtype_);
    both.second_ = second.data_;
    both.second_size_ = second.size_;
    both.second_dtype_ = second.dtype_;
    return both;
  }
  [[nodiscard]] bool is_joined() const noexcept { return second_size_ != 0; }
  /// Returns the number of elements of the first array, which is size() unless
  /// is_joined().
  [[nodiscard]] std::size_t first_size() const noexcept {
    return size_ - second_size_;
  }
  /// Returns the first array, and the second or an empty view.
  [[nodiscard]] std::array<ConstView, 2> parts() const {
    return {ConstView(data_, first_size(), dtype_),
            ConstView(second_, second_size_, second_dtype_)};
  }
  /// Returns the dtype of element `index`.
  [[nodiscard]] DType dtype_at(std::size_t index) const noexcept {
    return is_joined() && index >= first_size() ? second_dtype_ : dtype_;
  }

  /// Returns the memory of the first array, if there are two.
  [[nodiscard]] const void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Returns the dtype of the first array, if there are two.
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return first_size() * size_of(dtype_) +
           second_size_ * size_of(second_dtype_);
  }

  /// Returns the elements. Throws Error(kInvalidArgument) unless all of them
  /// have the type T.
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    detail::require_one_dtype(is_joined());
    detail::require_dtype(dtype_, dtype_of<T>);
    return {static_cast<const T*>(data_), size_};
  }

  /// Returns elements [offset, offset + count). Throws Error(kInvalidArgument)
  /// if they are not all inside.
  [[nodiscard]] ConstView subview(std::size_t offset, std::size_t count) const {
    detail::require_range(offset, count, size_);
    const std::size_t first = first_size();
    if (is_joined() && offset >= first)
      return parts()[1].subview(offset - first, count);
    if (is_joined() && offset + count > first)
      return joined(parts()[0].subview(offset, first - offset),
                    parts()[1].subview(0, offset + count - first));
    return {static_cast<const std::byte*>(data_) + offset * size_of(dtype_),
            count, dtype_};
  }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  DType dtype_ = DType::kFloat32;
  DType second_dtype_ = DType::kFloat32;
  const void* second_ = nullptr;
  std::size_t second_size_ = 0;
};

/// The writable counterpart of ConstView.
class View {
 public:
  View() = default;
  View(void* data, std::size_t size, DType dtype) noexcept
      : view_(data, size, dtype) {}

  template <detail::MutableElementRange R>
  requires(!std::is_same_v<std::remove_cvref_t<R>, View>)
      // NOLINTNEXTLINE(google-explicit-constructor): a vector is a view
      View(R&& range)
  noexcept
      : View(std::ranges::data(range), std::ranges::size(range),
             dtype_of<detail::element_t<R>>) {}

  // NOLINTNEXTLINE(google-explicit-constructor): as T* to const T*
  operator ConstView() const noexcept { return view_; }

  [[nodiscard]] static View joined(View first, View second) {
    return View(ConstView::joined(first.view_, second.view_));
  }
  [[nodiscard]] bool is_joined() const noexcept { return view_.is_joined(); }
  [[nodiscard]] std::size_t first_size() const noexcept {
    return view_.first_size();
  }
  [[nodiscard]] std::array<View, 2> parts() const {
    return {View(view_.parts()[0]), View(view_.parts()[1])};
  }
  [[nodiscard]] DType dtype_at(std::size_t index) const noexcept {
    return view_.dtype_at(index);
  }

  [[nodiscard]] void* data() const noexcept {
    return const_cast<void*>(view_.data());  // the constructor took a void*
  }
  [[nodiscard]] std::size_t size() const noexcept { return view_.size(); }
  [[nodiscard]] bool empty() const noexcept { return view_.empty(); }
  [[nodiscard]] DType dtype() const noexcept { return view_.dtype(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return view_.bytes(); }

  template <class T>
  [[nodiscard]] std::span<T> as() const {
    return {static_cast<T*>(data()), view_.as<T>().size()};
  }

  [[nodiscard]] View subview(std::size_t offset, std::size_t count) const {
    return View(view_.subview(offset, count));
  }

 private:
  explicit View(const ConstView& view) noexcept : view_(view) {}

  ConstView view_;  // views memory that is not const
};

}  // namespace thinwire
