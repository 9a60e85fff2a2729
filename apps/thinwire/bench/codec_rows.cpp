// SPDX-License-Identifier: Apache-2.0
// The kernels of the 1-bit codec alone, over blocks with a scale each, as
// exchange::CompressedAllReduce calls them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "apps/thinwire/bench/rows.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::apps::bench {

namespace {

using kernels::Signs;

constexpr std::size_t kBlock = 1024;
constexpr std::size_t kWords = kBlock / 32;
constexpr std::size_t kBlocksPerPiece = kPieceElements / kBlock;
constexpr std::size_t kWorld = 4;

std::size_t blocks_in(std::size_t elements) {
  return (elements + kBlock - 1) / kBlock;
}

/// Signs and a scale per block.
struct BlockSigns {
  explicit BlockSigns(std::size_t elements)
      : words(blocks_in(elements) * kWords, DType::kInt32),
        scales(blocks_in(elements), 0.5f) {}

  [[nodiscard]] std::uint32_t* words_of(std::size_t block) {
    return static_cast<std::uint32_t*>(words.data()) + block * kWords;
  }
  [[nodiscard]] Signs of(std::size_t block) {
    return {words_of(block), scales[block]};
  }

  Buffer words;
  std::vector<float> scales;
};

// A residual, and the signs that belong to it.
struct Encoding {
  explicit Encoding(std::size_t elements)
      : residual(Buffer::of<float>(elements)), sent(elements) {}

  [[nodiscard]] kernels::SignBlock block(std::size_t b, std::size_t at,
                                         std::size_t size) {
    return {.residual = residual.view().subview(at, size),
            .scale = sent.scales[b],
            .words = sent.words_of(b),
            .num_active = size};
  }

  Buffer residual;
  BlockSigns sent;
};

// Returns a function that calls body(arrays, block, place, size) for all
// blocks.
template <class Arrays, class Body>
Variant over_blocks(std::size_t elements, ThreadPool& pool, Arrays arrays,
                    Body body) {
  const auto shared = std::make_shared<Arrays>(std::move(arrays));
  return {[=, &pool] {
    pool.for_ranges(blocks_in(elements), kBlocksPerPiece,
                    [&](std::size_t begin, std::size_t end) {
                      for (std::size_t b = begin; b < end; ++b)
                        body(*shared, b, b * kBlock,
                             std::min(kBlock, elements - b * kBlock));
                    });
  }};
}

}  // namespace

Variant prepare_encode(std::size_t elements, ThreadPool& pool) {
  struct Work {
    Encoding out;
    Buffer values;
  };
  return over_blocks(
      elements, pool, Work{Encoding(elements), random_values(elements, 4)},
      [](Work& work, std::size_t b, std::size_t at, std::size_t size) {
        work.out.sent.scales[b] = kernels::sign_encode(
            {.values = work.values.as<float>().data() + at},
            work.out.block(b, at, size));
      });
}

Variant prepare_decode(std::size_t elements, ThreadPool& pool) {
  struct Work {
    BlockSigns signs;
    Buffer values;
  };
  return over_blocks(
      elements, pool, Work{BlockSigns(elements), random_values(elements, 4)},
      [](Work& work, std::size_t b, std::size_t at, std::size_t size) {
        kernels::sign_decode(work.signs.of(b), nullptr,
                             work.values.as<float>().data() + at, size);
      });
}

// The signs of the mean have the same memory as this rank's own signs.
Variant prepare_momentum_encode(std::size_t elements, ThreadPool& pool) {
  struct Work {
    Encoding out;
    Buffer grads;
    kernels::AdamCoefficients coefficients{};
  };
  return over_blocks(
      elements, pool, Work{Encoding(elements), random_values(elements, 2)},
      [](Work& work, std::size_t b, std::size_t at, std::size_t size) {
        const kernels::SignInput input{
            .grads = work.grads.view().subview(at, size),
            .mean = work.out.sent.of(b),
            .coefficients = &work.coefficients};
        work.out.sent.scales[b] =
            kernels::sign_encode(input, work.out.block(b, at, size));
      });
}

Variant prepare_serve(std::size_t elements, ThreadPool& pool) {
  struct Work {
    Encoding out;
    std::vector<BlockSigns> received;
  };
  Work prepared{Encoding(elements), {}};
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    BlockSigns& signs = prepared.received.emplace_back(elements);
    const Buffer bits = random_values(blocks_in(elements) * kWords, rank + 5);
    std::copy_n(static_cast<const std::uint32_t*>(bits.data()), bits.size(),
                signs.words_of(0));
  }
  return over_blocks(
      elements, pool, std::move(prepared),
      [](Work& work, std::size_t b, std::size_t at, std::size_t size) {
        std::array<Signs, kWorld> received;
        for (std::size_t r = 0; r < kWorld; ++r)
          received[r] = work.received[r].of(b);
        work.out.sent.scales[b] = kernels::sign_encode_average(
            received, 1.0f / kWorld, work.out.block(b, at, size));
      });
}

Variant prepare_apply(std::size_t elements, ThreadPool& pool) {
  struct Work {
    BlockSigns mean;
    Buffer params;
    Buffer denominator;
    kernels::AdamCoefficients coefficients{.decoupled_decay = 0.01f};
  };
  Work prepared{BlockSigns(elements), random_values(elements, 1),
                Buffer::of<float>(elements)};
  std::ranges::fill(prepared.denominator.as<float>(), 0.5f);
  return over_blocks(
      elements, pool, std::move(prepared),
      [](Work& work, std::size_t b, std::size_t at, std::size_t size) {
        kernels::sign_update(
            work.mean.of(b), nullptr,
            {.params = work.params.as<float>().data() + at,
             .denominator = work.denominator.as<float>().data() + at,
             .size = size},
            work.coefficients);
      });
}

}  // namespace thinwire::apps::bench
