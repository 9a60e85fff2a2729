// SPDX-License-Identifier: Apache-2.0
#include "plan/measured_kernels.h"

#include "plan/parts.h"

#include <algorithm>
#include <array>
#include <span>

#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/local_step.h"
#include "thinwire/kernels/low_rank.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::plan {

namespace {

constexpr std::size_t kWords = kBlock / 32;
constexpr int kBits = 4;
constexpr std::size_t kCodeWords = kernels::quantized_words(kBlock, kBits);
constexpr float kStep = 1e-6f;                 // of codes
constexpr std::size_t kColumns = 1024;         // columns of the matrix
constexpr std::size_t kBlocksPerPart = 64;     // blocks per thread and part
constexpr std::size_t kRank = Compute::kRank;  // rank of the low-rank exchange

std::size_t blocks_in(std::size_t elements) {
  return (elements + kBlock - 1) / kBlock;
}

// Returns ordinary values, without zeros or denormals.
Buffer values(std::size_t elements, float scale) {
  Buffer buffer = Buffer::of<float>(elements);
  const auto x = buffer.as<float>();
  for (std::size_t i = 0; i < elements; ++i)
    x[i] = scale * (0.5f + static_cast<float>(i % 61));
  return buffer;
}

Buffer scrambled(std::size_t count) {
  Buffer buffer(count, DType::kInt32);
  const auto words =
      std::span(static_cast<std::uint32_t*>(buffer.data()), count);
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = static_cast<std::uint32_t>(i) * 2654435761u;
  return buffer;
}

}  // namespace

MeasuredKernels::MeasuredKernels(std::size_t elements, int ranks,
                                 int num_threads)
    : elements_(elements),
      ranks_(static_cast<std::size_t>(ranks)),
      pool_(num_threads),
      params_(values(elements, 1e-2f)),
      grads_(values(elements, 1e-3f)),
      first_(values(elements, 1e-3f)),
      second_(values(elements, 1e-3f)),
      third_(values(elements, 1e-3f)),
      fourth_(values(elements, 1e-3f)),
      residuals_(elements, DType::kBFloat16),
      codes_(
          scrambled(std::max(blocks_in(elements), blocks_in(share()) * ranks_) *
                    kCodeWords)),
      words_(scrambled(blocks_in(elements) * kWords)),
      received_(scrambled(blocks_in(share()) * ranks_ * kWords)),
      sums_(kernels::sum_chunks(elements)) {
  coefficients_.decoupled_decay = 0.01f;
}

std::size_t MeasuredKernels::rows() const { return elements_ / kColumns; }

std::size_t MeasuredKernels::share() const {
  return (elements_ + ranks_ - 1) / ranks_;
}

std::uint32_t* MeasuredKernels::words(Buffer& of, std::size_t block) const {
  return static_cast<std::uint32_t*>(of.data()) + block * kWords;
}

std::uint32_t* MeasuredKernels::codes(std::size_t block) {
  return static_cast<std::uint32_t*>(codes_.data()) + block * kCodeWords;
}

template <class Body>
void MeasuredKernels::for_blocks(std::size_t elements, Body&& body) {
  pool_.for_ranges(blocks_in(elements), kBlocksPerPart,
                   [&](std::size_t begin, std::size_t end) {
                     for (std::size_t b = begin; b < end; ++b)
                       body(b, b * kBlock,
                            std::min(kBlock, elements - b * kBlock));
                   });
}

kernels::SignBlock MeasuredKernels::residual(std::size_t block, std::size_t at,
                                             std::size_t size) {
  return {.residual = first_.view().subview(at, size),
          .scale = 1e-3f,
          .words = words(words_, block),
          .num_active = size};
}

void MeasuredKernels::norm() {
  pool_.for_ranges(
      sums_.size(), kBlocksPerPart, [&](std::size_t begin, std::size_t end) {
        const std::size_t at = begin * kBlock;
        kernels::chunk_sums_of_squares(
            grads_.view().subview(at, std::min(end * kBlock, elements_) - at),
            std::span(sums_).subspan(begin, end - begin));
      });
}

void MeasuredKernels::encode() {
  for_blocks(elements_, [&](std::size_t b, std::size_t at, std::size_t size) {
    (void)kernels::sign_encode({.grads = grads_.view().subview(at, size),
                                .mean = {words(words_, b), 1e-3f},
                                .coefficients = &coefficients_},
                               residual(b, at, size));
  });
}

void MeasuredKernels::serve() {
  for_blocks(share(), [&](std::size_t b, std::size_t at, std::size_t size) {
    std::vector<kernels::Signs> from;
    for (std::size_t r = 0; r < ranks_; ++r)
      from.push_back({words(received_, r * blocks_in(share()) + b), 1e-3f});
    (void)kernels::sign_encode_average(from, 1.0f / static_cast<float>(ranks_),
                                       residual(b, at, size));
  });
}

void MeasuredKernels::update() {
  for_blocks(elements_, [&](std::size_t b, std::size_t at, std::size_t size) {
    kernels::sign_update({words(words_, b), 1e-3f}, nullptr,
                         {.params = params_.as<float>().data() + at,
                          .denominator = second_.as<float>().data() + at,
                          .size = size},
                         coefficients_);
  });
}

void MeasuredKernels::adam() {
  for_blocks(elements_, [&](std::size_t, std::size_t at, std::size_t size) {
    kernels::adam({.params = params_.as<float>().data() + at,
                   .exp_avg = first_.as<float>().data() + at,
                   .exp_avg_sq = second_.as<float>().data() + at,
                   .grads = grads_.view().subview(at, size)},
                  coefficients_);
  });
}

// Adds one piece of all ranks' values, as the communicator's thread does.
void MeasuredKernels::sum() {
  const std::size_t piece = std::min(share(), elements_);
  const auto to = params_.view().subview(0, piece);
  for (std::size_t r = 1; r < ranks_; ++r)
    kernels::accumulate(to, grads_.view().subview(
                                std::min(r * piece, elements_ - piece), piece));
}

// ---- 0/1 Adam

void MeasuredKernels::local_step() {
  for_blocks(elements_, [&](std::size_t, std::size_t at, std::size_t size) {
    kernels::local_step({.params = params_.as<float>().data() + at,
                         .origin = fourth_.as<float>().data() + at,
                         .exp_avg = first_.as<float>().data() + at,
                         .accumulated = third_.as<float>().data() + at,
                         .denominator = second_.as<float>().data() + at,
                         .grads = grads_.view().subview(at, size)},
                        1, coefficients_);
  });
}

void MeasuredKernels::sync_encode() {
  for_blocks(elements_, [&](std::size_t b, std::size_t at, std::size_t size) {
    kernels::SignBlock block = residual(b, at, size);
    block.residual = fourth_.view().subview(at, size);
    (void)kernels::sign_encode({.grads = grads_.view().subview(at, size),
                                .exp_avg = first_.as<float>().data() + at,
                                .coefficients = &coefficients_,
                                .denominator = second_.as<float>().data() + at,
                                .accumulated = third_.as<float>().data() + at},
                               block);
  });
}

void MeasuredKernels::sync_update() {
  for_blocks(elements_, [&](std::size_t b, std::size_t at, std::size_t size) {
    kernels::sync_update({words(words_, b), 1e-3f}, nullptr,
                         {.params = params_.as<float>().data() + at,
                          .origin = fourth_.as<float>().data() + at,
                          .denominator = second_.as<float>().data() + at,
                          .size = size},
                         1);
  });
}

void MeasuredKernels::fresh() { (void)Buffer::of<float>(elements_); }

// ---- ZeRO

void MeasuredKernels::store() {
  kernels::convert(grads_.view(), third_.view());
}

void MeasuredKernels::quantize() {
  for_blocks(elements_, [&](std::size_t b, std::size_t at, std::size_t size) {
    const View residual = residuals_.view().subview(at, size);
    (void)kernels::quantize_sum({.values = grads_.view().subview(at, size),
                                 .residual = residual,
                                 .error = residual},
                                kBits, codes(b));
  });
}

void MeasuredKernels::quantized_mean() {
  for_blocks(share(), [&](std::size_t b, std::size_t at, std::size_t size) {
    std::vector<kernels::Quantized> from;
    for (std::size_t r = 0; r < ranks_; ++r)
      from.push_back({codes(r * blocks_in(share()) + b), kStep});
    kernels::quantized_average(from, kBits, 1.0f / static_cast<float>(ranks_),
                               nullptr, first_.as<float>().data() + at, size);
  });
}

// Subtracts replicas from masters, as ZeRO does.
void MeasuredKernels::difference() {
  for_blocks(share(), [&](std::size_t b, std::size_t at, std::size_t size) {
    alignas(64) std::array<float, kBlock> c, own;
    const auto floats = [size](std::array<float, kBlock>& values) {
      return View(values.data(), size, DType::kFloat32);
    };
    kernels::convert(params_.view().subview(at, size), floats(c));
    kernels::convert(first_.view().subview(at, size), floats(own));
    for (std::size_t i = 0; i < size; ++i) c[i] -= own[i];
    (void)kernels::quantize(c.data(), kBits, codes(b), nullptr, size);
  });
}

void MeasuredKernels::dequantize() {
  for_blocks(elements_, [&](std::size_t b, std::size_t at, std::size_t size) {
    kernels::dequantize_add({codes(b), kStep}, kBits,
                            params_.view().subview(at, size));
  });
}

// ---- low rank

void MeasuredKernels::factor() {
  pool_.for_ranges(rows(), 16, [&](std::size_t begin, std::size_t end) {
    const std::size_t at = begin * kColumns;
    const std::size_t size = (end - begin) * kColumns;
    kernels::low_rank_rows({.values = grads_.view().subview(at, size),
                            .residual = first_.as<float>().data() + at,
                            .sum = second_.as<float>().data() + at,
                            .rows = end - begin,
                            .columns = kColumns},
                           third_.as<float>().data(), kRank,
                           fourth_.as<float>().data() + begin, rows());
  });
  pool_.for_ranges(
      rows() == 0 ? 0 : kColumns, 64, [&](std::size_t begin, std::size_t end) {
        kernels::low_rank_columns(second_.as<float>().data(), rows(), kColumns,
                                  fourth_.as<float>().data(), kRank, begin, end,
                                  params_.as<float>().data());
      });
}

void MeasuredKernels::product() {
  pool_.for_ranges(rows(), 16, [&](std::size_t begin, std::size_t end) {
    const std::size_t at = begin * kColumns;
    const std::size_t size = (end - begin) * kColumns;
    kernels::low_rank_product(fourth_.as<float>().data() + begin, rows(),
                              third_.as<float>().data(), kRank, end - begin,
                              kColumns, second_.as<float>().data() + at, 1,
                              params_.view().subview(at, size));
  });
}

}  // namespace thinwire::plan
