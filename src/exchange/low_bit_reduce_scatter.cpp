// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_reduce_scatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/require.h"
#include "exchange/checks.h"
#include "exchange/records/records.h"
#include "exchange/saturate.h"
#include "exchange/wait_meter.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::exchange {

namespace {

void require_piece(const LowBitReduceScatter::Piece& piece, int ranks,
                   std::size_t residual_size) {
  require(piece.owner >= 0 && piece.owner < ranks, "Piece.owner",
          fmt::format("in [0, {})", ranks), piece.owner);
  require(piece.size <= residual_size &&
              piece.residual <= residual_size - piece.size,
          "Piece.residual",
          fmt::format("at most {}",
                      residual_size - std::min(piece.size, residual_size)),
          piece.residual);
}

}  // namespace

struct LowBitReduceScatter::Impl {
  // The blocks of one part. `values` are those of the gradient.
  struct Part {
    BlockLayout layout;
    std::vector<std::size_t> to;  // per block, in the owner's result
    Records records;
    std::size_t gradient_size = 0;  // at least
    std::size_t result_size = 0;    // at least
  };

  // An exception leaves no collective that reads or writes this object.
  struct InFlight {
    InFlight() = default;
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;
    ~InFlight() {
      for (const comm::Work& work : of) comm::wait_ignoring_errors(work);
    }
    std::array<comm::Work, 2> of;
  };

  Impl(comm::Communicator& c, ThreadPool& p, std::size_t residual_size,
       std::span<const std::vector<Piece>> all, const LowBitMeanOptions& o)
      : comm(c),
        pool(p),
        options(o),
        residual(residual_size, o.residual_dtype),
        own(static_cast<std::size_t>(c.rank())),
        ranks(static_cast<std::size_t>(c.size())) {
    for (const auto& pieces : all) {
      for (const Piece& piece : pieces)
        require_piece(piece, comm.size(), residual_size);
      parts.push_back(make_part(pieces));
    }
  }

  comm::Communicator& comm;
  ThreadPool& pool;
  const LowBitMeanOptions options;
  Buffer residual;
  const std::size_t own;
  const std::size_t ranks;
  std::vector<std::unique_ptr<Part>> parts;
  // One bucket arrives while one is averaged.
  std::array<Buffer, 2> received{Buffer::of<std::uint8_t>(0),
                                 Buffer::of<std::uint8_t>(0)};
  double waited = 0;

  // A bucket has about equally many blocks for each rank, so that all ranks
  // send and receive all the time.
  [[nodiscard]] std::unique_ptr<Part> make_part(
      const std::vector<Piece>& pieces) {
    std::vector<std::vector<Block>> of_rank(ranks);
    std::vector<std::vector<std::size_t>> to_of_rank(ranks);
    auto part = std::make_unique<Part>();
    std::size_t elements = 0;
    for (const Piece& piece : pieces) {
      const auto owner = static_cast<std::size_t>(piece.owner);
      for (std::size_t at = 0; at < piece.size; at += kernels::kMostSummed) {
        const std::size_t size =
            std::min(kernels::kMostSummed, piece.size - at);
        of_rank[owner].push_back({{piece.from + at, size},
                                  {piece.residual + at, size},
                                  0,
                                  piece.owner});
        to_of_rank[owner].push_back(piece.to + at);
      }
      elements += piece.size;
      part->gradient_size =
          std::max(part->gradient_size, piece.from + piece.size);
      if (owner == own)
        part->result_size = std::max(part->result_size, piece.to + piece.size);
    }
    const std::size_t each = std::max<std::size_t>(
        1, bucket_rule(elements, comm.size(), options.bits) / ranks /
               kernels::kMostSummed);
    std::size_t most = 0;
    for (const auto& blocks : of_rank) most = std::max(most, blocks.size());
    std::vector<std::vector<Block>> buckets;
    for (std::size_t begin = 0; begin < most; begin += each) {
      buckets.emplace_back();
      for (std::size_t rank = 0; rank < ranks; ++rank)
        for (std::size_t k = begin;
             k < std::min(begin + each, of_rank[rank].size()); ++k) {
          buckets.back().push_back(of_rank[rank][k]);
          part->to.push_back(to_of_rank[rank][k]);
        }
    }
    part->layout =
        BlockLayout::of_blocks(std::move(buckets), comm.size(), options.bits);
    part->records = Records(part->layout);
    const Buffer needed = make_received(part->layout, ranks, own);
    for (Buffer& buffer : received)
      if (buffer.size() < needed.size())
        buffer = Buffer::of<std::uint8_t>(needed.size());
    return part;
  }

  void check(std::size_t number, ConstView gradient, View result,
             double loss_scale) const {
    require(number < parts.size(), "part",
            fmt::format("in [0, {})", parts.size()), number);
    const Part& part = *parts[number];
    require(gradient.size() >= part.gradient_size, "gradient",
            fmt::format("of at least {} elements", part.gradient_size),
            gradient.size());
    require(result.size() >= part.result_size, "result",
            fmt::format("of at least {} elements", part.result_size),
            result.size());
    require_loss_scale("loss_scale", loss_scale);
    require_float("gradient", gradient.dtype());
    require_float("result", result.dtype());
  }

  bool average(Part& part, ConstView gradient, View result, float scale,
               float factor) {
    const std::span<const Bucket> buckets = part.layout.buckets();
    InFlight works;
    bool is_finite = true;
    for (std::size_t k = 0; k <= buckets.size(); ++k) {
      if (k < buckets.size()) {
        encode(part, buckets[k], gradient, factor);
        works.of[k % 2] =
            queue_to_servers(comm, part.records.chunks(buckets[k], 0, ranks),
                             chunk_sizes(part.layout, buckets[k], 0, ranks),
                             own, received[k % 2]);
      }
      if (k > 0) {
        WaitMeter(waited).wait_for({&works.of[(k - 1) % 2], 1});
        is_finite &=
            decode(part, buckets[k - 1], received[(k - 1) % 2], result, scale);
      }
    }
    return is_finite;
  }

  void encode(Part& part, const Bucket& bucket, ConstView gradient,
              float factor) {
    const std::size_t first = bucket.first_block();
    for_parts(pool, {first, bucket.end_block() - first}, [&](Range blocks) {
      for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
        encode_block(part.layout.blocks()[b], part.records.at(b), gradient,
                     factor);
    });
  }

  // A block that is not finite leaves its residual as it was.
  void encode_block(const Block& block, std::uint8_t* record,
                    ConstView gradient, float factor) {
    alignas(float) std::array<std::byte, kernels::kMostSummed * sizeof(float)>
        memory;
    const View error(memory.data(), block.values.size, options.residual_dtype);
    const View kept =
        residual.view().subview(block.residual.offset, block.residual.size);
    write_quantized(
        record,
        {.values = gradient.subview(block.values.offset, block.values.size),
         .factor = factor,
         .residual = kept,
         .error = error},
        options.bits);
    if (std::isfinite(scale_of(record)))
      std::memcpy(kept.data(), error.data(), error.bytes());
  }

  // Writes this rank's blocks of a bucket, and returns whether they are finite.
  bool decode(const Part& part, const Bucket& bucket, const Buffer& from,
              View result, float scale) {
    const Received records(part.layout, bucket, own,
                           from.as<std::uint8_t>().data());
    const std::size_t first = bucket.server_begin[own];
    std::atomic<bool> is_finite = true;
    for_parts(pool, {first, bucket.server_begin[own + 1] - first},
              [&](Range blocks) {
                QuantizedMean mean(
                    records, ranks, options.bits,
                    static_cast<float>(1.0 / static_cast<double>(ranks)));
                std::array<float, kernels::kMostSummed> values;
                for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
                  const std::size_t size = part.layout.blocks()[b].values.size;
                  const auto decoded = std::span(values).first(size);
                  mean.write(b, decoded);
                  // NaN if any rank's step is: 0 * NaN.
                  const bool is_number = std::isfinite(decoded.front());
                  if (!is_number) is_finite = false;
                  for (float& value : decoded) value *= scale;
                  // The mean of codes may lie above the largest finite
                  // gradient.
                  if (is_number) saturate(decoded, result.dtype());
                  kernels::convert(decoded, result.subview(part.to[b], size));
                }
              });
    return is_finite;
  }

  static void copy(const Part& part, ConstView gradient, View result) {
    for (std::size_t b = 0; b < part.to.size(); ++b) {
      const Range& at = part.layout.blocks()[b].values;
      kernels::convert(gradient.subview(at.offset, at.size),
                       result.subview(part.to[b], at.size));
    }
  }
};

LowBitReduceScatter::LowBitReduceScatter(
    comm::Communicator& comm, ThreadPool& pool, std::size_t residual_size,
    std::span<const std::vector<Piece>> parts,
    const LowBitMeanOptions& options) {
  require_options(options);
  impl_ = std::make_unique<Impl>(comm, pool, residual_size, parts, options);
}

LowBitReduceScatter::~LowBitReduceScatter() = default;

bool LowBitReduceScatter::average(std::size_t part, ConstView gradient,
                                  View result, double loss_scale) {
  impl_->check(part, gradient, result, loss_scale);
  Impl::Part& own = *impl_->parts[part];
  if (impl_->comm.size() == 1) {
    Impl::copy(own, gradient, result);
    return true;
  }
  return impl_->average(own, gradient, result, static_cast<float>(loss_scale),
                        static_cast<float>(1 / loss_scale));
}

std::size_t LowBitReduceScatter::bytes_per_pass() const noexcept {
  std::size_t bytes = 0;
  for (const auto& part : impl_->parts)
    for (const Block& block : part->layout.blocks())
      if (block.server != impl_->comm.rank())
        bytes += record_bytes(block.values.size, impl_->options.bits);
  return bytes;
}

double LowBitReduceScatter::wait_seconds() const noexcept {
  return impl_->waited;
}

ConstView LowBitReduceScatter::error() const noexcept {
  return std::as_const(impl_->residual).view();
}

void LowBitReduceScatter::load_error(ConstView error) {
  const Buffer& own = impl_->residual;
  require_residual("the residual", error, own.dtype(), own.size());
  if (!error.empty())
    std::memcpy(impl_->residual.view().data(), error.data(), error.bytes());
}

}  // namespace thinwire::exchange
