// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/compressed_all_reduce.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/set_to_zero.h"
#include "exchange/codec/sign.h"
#include "exchange/wait_meter.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::deepspeed {

using kernels::Signs;

namespace {

// Adds chunk by chunk, in order, because a unit has no groups of chunks.
double sum_of_squares(std::span<const float> values) {
  std::vector<double> chunks(kernels::sum_chunks(values.size()));
  kernels::chunk_sums_of_squares(values, chunks);
  return std::accumulate(chunks.begin(), chunks.end(), 0.0);
}

}  // namespace

std::size_t padded_size(std::size_t size, int world) {
  const auto ranks = static_cast<std::size_t>(world);
  const std::size_t multiple = ranks * std::lcm(std::size_t{8}, ranks);
  return (size + multiple - 1) / multiple * multiple;
}

CompressedAllReduce::CompressedAllReduce(comm::Communicator& comm,
                                         std::span<const Range> units)
    : comm_(comm), world_(static_cast<std::size_t>(comm.size())) {
  std::size_t residuals = 0;
  for (const Range& values : units) {
    if (values.size == 0) continue;
    const std::size_t padded = padded_size(values.size, comm.size());
    units_.push_back({values, residuals, padded / world_, records_size_});
    residuals += padded;
    records_size_ += exchange::sign_codec().record_bytes(padded / world_);
  }
  worker_error_ = Buffer::of<float>(residuals);
  server_error_ = Buffer::of<float>(residuals / world_);
}

void CompressedAllReduce::all_reduce(std::span<float> values) {
  Records sent(world_ * records_size_);
  Records received(sent.size());
  Records own(records_size_);
  for (const Unit& unit : units_)
    encode(unit, values.data() + unit.values.offset, sent);
  show(true, 0, sent);
  exchange::WaitMeter meter(waited_);
  meter.waiting(
      [&] { comm_.all_to_all(std::span(sent), std::span(received)); });
  for (const Unit& unit : units_) average(unit, received, record(own, 0, unit));
  show(false, static_cast<std::size_t>(comm_.rank()) * units_.size(), own);
  meter.waiting([&] { comm_.all_gather(std::span(own), std::span(sent)); });
  for (const Unit& unit : units_)
    decode(unit, sent, values.data() + unit.values.offset);
}

// c = x + e and e = c - scale * sign, with one scale for the whole unit.
void CompressedAllReduce::encode(const Unit& unit, const float* x,
                                 Records& sent) {
  const auto c = worker_error_.as<float>().subspan(unit.first);
  double sum = 0;
  for (std::size_t s = 0; s < world_; ++s) {
    const std::size_t begin = std::min(unit.values.size, s * unit.chunk);
    const std::size_t end = std::min(unit.values.size, (s + 1) * unit.chunk);
    const std::size_t padding = unit.chunk - (end - begin);
    for (std::size_t i = begin; i < end; ++i) c[i] = x[i] + c[i];
    for (std::size_t i = 0; i < padding; ++i) {
      float& last = c[(s + 1) * unit.chunk - 1 - i];
      last = 0.0f + last;
    }
    // Values and padding are summed separately, because the order determines
    // the last bits.
    const double of_values = sum_of_squares(c.subspan(begin, end - begin));
    const double of_padding =
        sum_of_squares(c.subspan((s + 1) * unit.chunk - padding, padding));
    sum += of_values + of_padding;
  }
  const float scale = kernels::sign_scale(sum, world_ * unit.chunk);
  for (std::size_t s = 0; s < world_; ++s) {
    std::uint8_t* const to = record(sent, s, unit);
    exchange::set_scale(to, scale);
    kernels::sign_split(&c[s * unit.chunk], scale, exchange::words_of(to),
                        nullptr, unit.chunk);
  }
}

// c = d + the mean over the ranks, in rank order, with a separate scale.
void CompressedAllReduce::average(const Unit& unit, Records& received,
                                  std::uint8_t* to) {
  const auto c =
      server_error_.as<float>().subspan(unit.first / world_, unit.chunk);
  const auto inverse_count =
      static_cast<float>(1.0 / static_cast<double>(world_));
  std::vector<float> mean(unit.chunk);
  for (std::size_t r = 0; r < world_; ++r) {
    const Signs signs = exchange::SignCodec::decode(record(received, r, unit));
    const float term = signs.scale * inverse_count;
    for (std::size_t i = 0; i < unit.chunk; ++i) {
      const bool is_positive = (signs.words[i / 32] >> (i % 32) & 1u) != 0;
      mean[i] = mean[i] + (is_positive ? term : -term);
    }
  }
  for (std::size_t i = 0; i < unit.chunk; ++i) c[i] = mean[i] + c[i];
  const float scale = kernels::sign_scale(sum_of_squares(c), unit.chunk);
  exchange::set_scale(to, scale);
  kernels::sign_split(c.data(), scale, exchange::words_of(to), nullptr,
                      unit.chunk);
}

void CompressedAllReduce::decode(const Unit& unit, Records& results,
                                 float* x) const {
  for (std::size_t s = 0; s < world_; ++s) {
    const std::size_t begin = std::min(unit.values.size, s * unit.chunk);
    const std::size_t end = std::min(unit.values.size, (s + 1) * unit.chunk);
    kernels::sign_decode(exchange::SignCodec::decode(record(results, s, unit)),
                         nullptr, x + begin, end - begin);
  }
}

void CompressedAllReduce::show(bool of_worker, std::size_t first_block,
                               Records& records) const {
  if (observer_ == nullptr) return;
  for (std::size_t rank = 0; rank * records_size_ < records.size(); ++rank)
    for (const Unit& unit : units_) {
      const Signs signs =
          exchange::SignCodec::decode(record(records, rank, unit));
      if (of_worker)
        observer_->worker_record(first_block++, signs);
      else
        observer_->server_record(first_block++, signs);
    }
}

void CompressedAllReduce::clear_errors() {
  set_to_zero(worker_error_.view());
  set_to_zero(server_error_.view());
}

void CompressedAllReduce::take_errors(Buffer&& worker, Buffer&& server) {
  worker_error_ = std::move(worker);
  server_error_ = std::move(server);
}

}  // namespace thinwire::deepspeed
