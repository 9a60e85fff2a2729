// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/replicas.h"

#include <array>

#include "thinwire/kernels/cast.h"
#include "zero/wire/blocks.h"

namespace thinwire::zero {

namespace {

using Scratch = std::array<float, kernels::kMostSummed>;

// Rounds the masters to the replica's dtype, subtracts the replica, and stores
// the difference in c.
void form_difference(ConstView masters, ConstView replica, float* c) {
  const std::size_t size = masters.size();
  alignas(64) Scratch rounded_bits;
  const View rounded(rounded_bits.data(), size, replica.dtype());
  const View wide(c, size, DType::kFloat32);
  kernels::convert(masters, rounded);
  kernels::convert(rounded, wide);
  alignas(64) Scratch own;
  kernels::convert(replica, View(own.data(), size, DType::kFloat32));
  for (std::size_t i = 0; i < size; ++i) c[i] = c[i] - own[i];
}

}  // namespace

Replicas::Replicas(comm::Communicator& comm, const ShardLayout& shards,
                   std::span<const Range> units, int bits, View replicas,
                   ThreadPool& pool)
    : rank_(static_cast<std::size_t>(comm.rank())),
      shards_(shards),
      bits_(bits),
      codec_(exchange::codec_of(bits)),
      replicas_(replicas),
      blocks_(blocks_of(shards, shards.owners(), units)),
      pipeline_({comm, nullptr, shards.owners()}, pool, blocks_,
                {codec_, codec_}, {.direction = exchange::Direction::kDown}) {}

void Replicas::send(std::size_t b, ConstView masters, optim::StepMeter& meter) {
  masters_ = masters;
  masters_begin_ = shards_.buckets()[b].pieces[rank_].offset;
  if (b == 0) {
    taken_ = 0;
    pipeline_.begin(
        {.encode = [this](std::size_t i,
                          std::uint8_t* record) { encode(i, record); },
         .take =
             [this](std::size_t i, const std::uint8_t* record) {
               const Range& at = blocks_.blocks()[i].values;
               codec_.add(record, replicas_.subview(at.offset, at.size));
             },
         .taken = [this](Range) { ++taken_; }});
  }
  meter.adding_waits_of(pipeline_, [b](auto& all) { all.ready(b); });
}

void Replicas::encode(std::size_t i, std::uint8_t* record) const {
  const Range& values = blocks_.blocks()[i].values;
  alignas(64) Scratch memory;
  const View c(memory.data(), values.size, DType::kFloat32);
  form_difference(masters_.subview(values.offset - masters_begin_, values.size),
                  replicas_.subview(values.offset, values.size), memory.data());
  codec_.encode({.residual = c, .error = c}, record);
}

void Replicas::finish(optim::StepMeter& meter) {
  if (!pipeline_.has_begun()) return;
  meter.adding_waits_of(pipeline_, [](auto& all) { all.finish(); });
}

}  // namespace thinwire::zero
