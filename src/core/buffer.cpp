// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace thinwire {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}  // namespace

Buffer::Buffer(std::size_t size, DType dtype, Fill fill)
    : size_(size), dtype_(dtype) {
  if (size == 0) return;
  if (size >
      (std::numeric_limits<std::size_t>::max() - kHugePage) / size_of(dtype))
    throw std::bad_alloc();
  const std::size_t bytes = size * size_of(dtype);
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  const std::size_t rounded =
      (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;  // aligned_alloc() would round the size up to pages
  if (posix_memalign(&data, alignment, rounded) != 0) throw std::bad_alloc();
  data_.reset(data);
  note_ = MemoryNote(rounded);
#ifdef MADV_HUGEPAGE
  // This is only advice: without huge pages everything works, a little slower.
  if (alignment == kHugePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);
#endif
  if (fill == Fill::kZeros) std::memset(data_.get(), 0, rounded);
}

void Buffer::Free::operator()(void* data) const noexcept { std::free(data); }

}  // namespace thinwire
