// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thinwire/compress/block_layout.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::compress {

/// One record per block, as they travel: a float scale, then the sign words.
/// The layout must outlive it.
class Records {
 public:
  explicit Records(const BlockLayout& layout);

  [[nodiscard]] static kernels::Signs read(const std::uint8_t* record);
  [[nodiscard]] kernels::Signs at(std::size_t block) const;
  /// Writes the block's scale; returns where its words go.
  [[nodiscard]] std::uint32_t* write(std::size_t block, float scale);

  /// The bucket's records, and those of it that `server` averages.
  [[nodiscard]] View of(const Bucket& bucket);
  [[nodiscard]] View chunk(const Bucket& bucket, std::size_t server);
  [[nodiscard]] std::size_t chunk_bytes(const Bucket& bucket,
                                        std::size_t server) const;
  [[nodiscard]] std::vector<std::size_t> chunk_sizes(
      const Bucket& bucket) const;

 private:
  const BlockLayout* layout_;
  Buffer bytes_;
};

}  // namespace thinwire::compress
