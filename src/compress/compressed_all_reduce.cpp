// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/compressed_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "compress/records.h"
#include "compress/residual.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::compress {

using comm::Work;
using kernels::SignInput;
using kernels::Signs;

namespace {

constexpr std::size_t kBlocksPerGrain = 16;

void require_errors(ConstView given, const Buffer& own, const char* name) {
  if (given.dtype() != own.dtype() || given.size() != own.size())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("state array '{}' must be {} of {} elements (residuals fit "
                    "the same ranks, bucket size and dtype), got {} of {}",
                    name, to_string(own.dtype()), own.size(),
                    to_string(given.dtype()), given.size()));
}

}  // namespace

struct CompressedAllReduce::Impl {
  Impl(comm::Communicator& c, ThreadPool& p, std::span<const Range> units,
       const CompressedAllReduceOptions& o)
      : comm(c), pool(p), options(o), layout(units, o.blocks), records(layout) {
    const auto world = static_cast<std::size_t>(comm.size());
    const auto rank = static_cast<std::size_t>(comm.rank());
    server_offset.assign(layout.blocks().size(), 0);
    std::size_t served = 0;
    std::size_t most_received = 0;
    for (const Bucket& bucket : layout.buckets()) {
      for (std::size_t b = bucket.server_begin[rank];
           b < bucket.server_begin[rank + 1]; ++b) {
        server_offset[b] = served;
        served += layout.blocks()[b].residual.size;
      }
      most_received =
          std::max(most_received, world * records.chunk_bytes(bucket, rank));
    }
    worker_error = Buffer(layout.residual_size(), options.residual_dtype);
    server_error = Buffer(served, options.residual_dtype);
    for (Buffer& slot : received)
      slot = Buffer::of<std::uint8_t>(most_received);
  }

  comm::Communicator& comm;
  ThreadPool& pool;
  CompressedAllReduceOptions options;
  BlockLayout layout;
  ActiveMask active;
  WireObserver* observer = nullptr;
  Buffer worker_error;
  Buffer server_error;
  std::vector<std::size_t> server_offset;  // per block this rank serves
  // First this rank's encoded values, then, bucket by bucket, the result.
  Records records;
  // What others sent: one bucket is averaged while the next one arrives.
  std::array<Buffer, 2> received;
  double waited = 0;

  [[nodiscard]] kernels::SignNorm norm() const {
    return options.scale == Scale::kRms ? kernels::SignNorm::kSquares
                                        : kernels::SignNorm::kAbs;
  }

  // Both factors are rounded to float before the division, as the reference
  // does it.
  [[nodiscard]] float scale_from(double sum, std::size_t count) const {
    if (count == 0) return 0;
    const auto elements = static_cast<double>(count);
    if (options.scale == Scale::kL1)
      return static_cast<float>(sum) / static_cast<float>(elements);
    return static_cast<float>(std::sqrt(sum)) /
           static_cast<float>(std::sqrt(elements));
  }

  // c = x + e over the block, padding included.
  double accumulate(std::size_t b, const Source& source, float* error) {
    const Block& block = layout.blocks()[b];
    const std::uint32_t* mask = active.words(layout, b);
    const std::size_t padding = block.residual.size - block.values.size;
    double sum = 0;
    if (block.values.size != 0)
      sum += kernels::sign_accumulate(source(b), error, mask, norm(),
                                      block.values.size);
    if (padding != 0)
      sum += kernels::sign_accumulate({}, error + block.values.size, nullptr,
                                      norm(), padding);
    return sum;
  }

  void split(std::size_t b, float* error, float scale) {
    kernels::sign_split(error, scale, records.write(b, scale),
                        active.words(layout, b),
                        layout.blocks()[b].residual.size);
  }

  // All blocks of one scale: their common sum first, then their bits. With a
  // scale per block the block is still in L1 when its bits are made.
  void encode_scale(const Bucket& bucket, std::size_t scale_index,
                    const Source& source) {
    const std::size_t first = layout.first_block_of(bucket, scale_index);
    const std::size_t stride = layout.block_stride(bucket);
    if (layout.blocks_per_scale() == 1) {
      Residual error(worker_error.view(), layout.blocks()[first].residual);
      const double sum = accumulate(first, source, error.floats());
      split(first, error.floats(),
            scale_from(sum, active.count(layout, first)));
      error.store();
      return;
    }
    float* const errors = worker_error.as<float>().data();
    double sum = 0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < layout.blocks_per_scale(); ++i) {
      const std::size_t b = first + i * stride;
      sum += accumulate(b, source, errors + layout.blocks()[b].residual.offset);
      count += active.count(layout, b);
    }
    const float scale = scale_from(sum, count);
    for (std::size_t i = 0; i < layout.blocks_per_scale(); ++i) {
      const std::size_t b = first + i * stride;
      split(b, errors + layout.blocks()[b].residual.offset, scale);
    }
  }

  void encode(const Bucket& bucket, const Source& source) {
    const std::size_t scales = bucket.end_scale - bucket.first_scale;
    pool.for_ranges(scales, kBlocksPerGrain,
                    [&](std::size_t begin, std::size_t end) {
                      for (std::size_t s = begin; s < end; ++s)
                        encode_scale(bucket, bucket.first_scale + s, source);
                    });
    if (observer == nullptr) return;
    for (std::size_t b = bucket.first_block(); b < bucket.end_block(); ++b)
      observer->worker_record(b, records.at(b));
  }

  void average_block(std::size_t b, std::span<const Signs> from) {
    const Block& block = layout.blocks()[b];
    Residual error(server_error.view(),
                   {server_offset[b], block.residual.size});
    const double sum = kernels::sign_average(
        from, static_cast<float>(1.0 / comm.size()), error.floats(),
        active.words(layout, b), norm(), block.residual.size);
    split(b, error.floats(), scale_from(sum, active.count(layout, b)));
    error.store();
  }

  void average(const Bucket& bucket, const Buffer& from) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::size_t first = bucket.server_begin[rank];
    const std::size_t count = bucket.server_begin[rank + 1] - first;
    const std::size_t begin = layout.record_begin(first);
    const std::size_t stride = records.chunk_bytes(bucket, rank);
    const auto chunks = static_cast<std::size_t>(comm.size());
    const std::uint8_t* bytes = from.as<std::uint8_t>().data();
    pool.for_ranges(
        count, kBlocksPerGrain, [&](std::size_t lower, std::size_t upper) {
          std::vector<Signs> signs(chunks);
          for (std::size_t b = first + lower; b < first + upper; ++b) {
            const std::size_t at = layout.record_begin(b) - begin;
            for (std::size_t r = 0; r < chunks; ++r)
              signs[r] = Records::read(bytes + r * stride + at);
            average_block(b, signs);
          }
        });
    if (observer == nullptr) return;
    for (std::size_t b = first; b < first + count; ++b)
      observer->server_record(b, records.at(b));
  }

  void deliver(const Bucket& bucket, const Sink& sink) {
    const std::size_t first = bucket.first_block();
    pool.for_ranges(bucket.end_block() - first, kBlocksPerGrain,
                    [&](std::size_t begin, std::size_t end) {
                      for (std::size_t b = first + begin; b < first + end; ++b)
                        sink(b, records.at(b));
                    });
  }

  Work queue_to_servers(const Bucket& bucket, Buffer& slot) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::vector<std::size_t> send = records.chunk_sizes(bucket);
    const std::vector<std::size_t> receive(send.size(), send[rank]);
    return comm.queue_all_to_all(
        records.of(bucket), send,
        slot.view().subview(0, send.size() * send[rank]), receive);
  }

  Work queue_from_servers(const Bucket& bucket) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    return comm.queue_all_gather(records.chunk(bucket, rank),
                                 records.of(bucket),
                                 records.chunk_sizes(bucket));
  }

  void wait(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work.wait();
    waited +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
  }

  // The order in which collectives are queued is the same on all ranks: to
  // servers 0, to servers 1, from servers 0, to servers 2, from servers 1, ...
  void run(const Source& source, const Sink& sink) {
    const auto buckets = layout.buckets();
    std::vector<Work> to_servers(buckets.size());
    std::vector<Work> from_servers(buckets.size());
    for (std::size_t k = 0; k < buckets.size() + 2; ++k) {
      if (k < buckets.size()) {
        encode(buckets[k], source);
        to_servers[k] = queue_to_servers(buckets[k], received[k % 2]);
      }
      if (k >= 1 && k - 1 < buckets.size()) {
        wait(to_servers[k - 1]);
        average(buckets[k - 1], received[(k - 1) % 2]);
        from_servers[k - 1] = queue_from_servers(buckets[k - 1]);
      }
      if (k >= 2 && k - 2 < buckets.size()) {
        wait(from_servers[k - 2]);
        deliver(buckets[k - 2], sink);
      }
    }
  }

  // The lowest rank whose values are not finite, or -1; collective.
  int find_nonfinite(std::span<const float> values) {
    double sum = 0;
    for (const Block& block : layout.blocks()) {
      const ConstView part =
          values.subspan(block.values.offset, block.values.size);
      for (std::size_t c = 0; c < kernels::sum_chunks(part.size()); ++c)
        sum += kernels::chunk_sum_of_squares(part, c);
    }
    std::vector<double> sums(static_cast<std::size_t>(comm.size()));
    comm.all_gather(std::span(&sum, 1), sums);
    for (std::size_t r = 0; r < sums.size(); ++r)
      if (!std::isfinite(sums[r])) return static_cast<int>(r);
    return -1;
  }
};

CompressedAllReduce::CompressedAllReduce(
    comm::Communicator& comm, ThreadPool& pool, std::span<const Range> units,
    const CompressedAllReduceOptions& options) {
  if (options.blocks.world_size != comm.size())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("BlockOptions.world_size must be the "
                            "communicator's {}, got {}",
                            comm.size(), options.blocks.world_size));
  const bool bf16 = options.residual_dtype == DType::kBFloat16;
  if (!bf16 && options.residual_dtype != DType::kFloat32)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("residual_dtype must be float32 or bfloat16, got "
                            "{}",
                            to_string(options.residual_dtype)));
  if (bf16 && options.blocks.scale_per_unit)
    throw Error(ErrorCode::kInvalidArgument,
                "residual_dtype must be float32 with a scale per unit, got "
                "bfloat16");
  impl_ = std::make_unique<Impl>(comm, pool, units, options);
}

CompressedAllReduce::~CompressedAllReduce() = default;

int CompressedAllReduce::all_reduce(View values) {
  const std::span<float> x = values.as<float>();
  for (const Block& block : impl_->layout.blocks())
    detail::require_range(block.values.offset, block.values.size, x.size());
  if (impl_->comm.size() == 1 && !impl_->options.compresses_alone) return -1;
  if (impl_->options.checks_finite) {
    const int rank = impl_->find_nonfinite(x);
    if (rank >= 0) return rank;
  }
  const auto blocks = impl_->layout.blocks();
  run(
      [&](std::size_t b) {
        return SignInput{.values = x.data() + blocks[b].values.offset};
      },
      [&](std::size_t b, Signs mean) {
        kernels::sign_decode(mean, impl_->active.words(impl_->layout, b),
                             x.data() + blocks[b].values.offset,
                             blocks[b].values.size);
      });
  return -1;
}

void CompressedAllReduce::run(const Source& source, const Sink& sink) {
  impl_->run(source, sink);
}

void CompressedAllReduce::set_active(ActiveMask active) {
  impl_->active = std::move(active);
}

const ActiveMask& CompressedAllReduce::active() const noexcept {
  return impl_->active;
}

void CompressedAllReduce::set_observer(WireObserver* observer) noexcept {
  impl_->observer = observer;
}

const BlockLayout& CompressedAllReduce::layout() const noexcept {
  return impl_->layout;
}

Signs CompressedAllReduce::mean(std::size_t block) const noexcept {
  return impl_->records.at(block);
}

double CompressedAllReduce::wait_seconds() const noexcept {
  return impl_->waited;
}

ConstView CompressedAllReduce::worker_error() const noexcept {
  return std::as_const(impl_->worker_error).view();
}

ConstView CompressedAllReduce::server_error() const noexcept {
  return std::as_const(impl_->server_error).view();
}

void CompressedAllReduce::clear_errors() noexcept {
  for (Buffer* error : {&impl_->worker_error, &impl_->server_error})
    if (!error->empty()) std::memset(error->data(), 0, error->bytes());
}

void CompressedAllReduce::load_errors(ConstView worker, ConstView server) {
  require_errors(worker, impl_->worker_error, "worker_error");
  require_errors(server, impl_->server_error, "server_error");
  if (worker.bytes() != 0)
    std::memcpy(impl_->worker_error.data(), worker.data(), worker.bytes());
  if (server.bytes() != 0)
    std::memcpy(impl_->server_error.data(), server.data(), server.bytes());
}

}  // namespace thinwire::compress
