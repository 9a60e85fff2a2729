// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "thinwire/core/memory.h"
#include "thinwire/core/view.h"

namespace thinwire {

/// Initial contents of a new Buffer.
enum class Fill {
  kZeros,
  kNone,  ///< Uninitialized: saves a pass over a buffer that is filled at once.
};

/// An owned flat array, 64-byte aligned and zero-filled, unless Fill::kNone is
/// given. Buffers of 4 MiB and more begin on a 2 MiB page and request huge
/// pages. memory_use() counts the allocated bytes, which are bytes() rounded up
/// to a multiple of kAlignment.
class Buffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  Buffer() = default;
  /// Allocates the array. Throws std::bad_alloc.
  Buffer(std::size_t size, DType dtype, Fill fill = Fill::kZeros);

  /// Leaves `other` empty.
  Buffer(Buffer&& other) noexcept
      : note_(std::move(other.note_)),
        data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        dtype_(other.dtype_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    note_ = std::move(other.note_);
    size_ = std::exchange(other.size_, 0);
    dtype_ = other.dtype_;
    return *this;
  }

  template <class T>
  [[nodiscard]] static Buffer of(std::size_t size) {
    return Buffer(size, dtype_of<T>);
  }

  [[nodiscard]] void* data() noexcept { return data_.get(); }
  [[nodiscard]] const void* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return size_ * size_of(dtype_);
  }

  [[nodiscard]] View view() noexcept { return {data(), size_, dtype_}; }
  [[nodiscard]] ConstView view() const noexcept {
    return {data(), size_, dtype_};
  }
  template <class T>
  [[nodiscard]] std::span<T> as() {
    return view().as<T>();
  }
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    return view().as<T>();
  }

 private:
  struct Free {
    void operator()(void* data) const noexcept;
  };

  MemoryNote note_;  // destroyed after the memory
  std::unique_ptr<void, Free> data_;
  std::size_t size_ = 0;
  DType dtype_ = DType::kFloat32;
};

}  // namespace thinwire
