// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/replicas.h"

#include "comm/wait_ignoring_errors.h"
#include "exchange/records/records.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::zero {

using exchange::Bucket;

namespace {

using Scratch = std::array<float, kernels::kMostSummed>;

// Computes c, the difference between masters rounded to the replica's dtype and
// the replica.
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

LowBitReplicas::LowBitReplicas(comm::Communicator& comm,
                               const ShardLayout& shards,
                               std::span<const Range> units, int bits,
                               View replicas)
    : comm_(comm),
      shards_(shards),
      bits_(bits),
      replicas_(replicas),
      blocks_(blocks_of(shards, shards.owners(), units, bits)),
      route_(comm, blocks_, shards.owners()) {
  const MemoryScope scope(MemoryKind::kBuckets);
  for (Slot& slot : slots_) slot.records = route_.make_records();
}

LowBitReplicas::~LowBitReplicas() {
  for (const Slot& slot : slots_)
    if (slot.bucket != nullptr) comm::wait_ignoring_errors(slot.work);
}

void LowBitReplicas::send(std::size_t b, ConstView masters, ThreadPool& pool,
                          optim::StepMeter& meter) {
  if (b == 0) taken_ = 0;
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  take(slot, pool, meter);
  slot.bucket = &blocks_.buckets()[b];
  const auto rank = static_cast<std::size_t>(comm_.rank());
  encode(slot, masters, shards_.buckets()[b].pieces[rank].offset, pool);
  slot.work = route_.queue_from_owners(*slot.bucket, slot.records);
}

void LowBitReplicas::encode(Slot& slot, ConstView masters, std::size_t begin,
                            ThreadPool& pool) {
  for_blocks(pool, route_.owned_of(*slot.bucket), [&](std::size_t i) {
    const Range& values = blocks_.blocks()[i].values;
    alignas(64) Scratch c;
    form_difference(masters.subview(values.offset - begin, values.size),
                    replicas_.subview(values.offset, values.size), c.data());
    std::uint8_t* const record = route_.record(slot.records, *slot.bucket, i);
    exchange::set_scale(
        record, kernels::quantize(c.data(), bits_, exchange::words_of(record),
                                  nullptr, values.size));
  });
}

void LowBitReplicas::take(Slot& slot, ThreadPool& pool,
                          optim::StepMeter& meter) {
  if (slot.bucket == nullptr) return;
  const Bucket& bucket = *slot.bucket;
  meter.waiting([&] { slot.work.wait(); });
  for_blocks(
      pool, {bucket.first_block(), bucket.end_block() - bucket.first_block()},
      [&](std::size_t i) {
        const Range& values = blocks_.blocks()[i].values;
        const std::uint8_t* const record =
            route_.record(slot.records, bucket, i);
        kernels::dequantize_add(exchange::quantized_in(record), bits_,
                                replicas_.subview(values.offset, values.size));
      });
  slot.bucket = nullptr;
  ++taken_;
}

void LowBitReplicas::finish(ThreadPool& pool, optim::StepMeter& meter) {
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    take(slots_[next_], pool, meter);
    next_ = (next_ + 1) % slots_.size();
  }
}

}  // namespace thinwire::zero
