// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/sign_compress.h"
#include "thinwire/plan/planner.h"

namespace thinwire::plan {

/// Runs the kernels of a step as the optimizers do. Each call processes
/// `elements` elements once.
class MeasuredKernels {
 public:
  /// `ranks` is the number of records in an average. `num_threads` has the
  /// meaning that it has for ThreadPool.
  MeasuredKernels(std::size_t elements, int ranks, int num_threads);

  void norm();    ///< Sums the squares of gradients.
  void encode();  ///< Computes momentum, residual and records.
  void serve();   ///< Serves this rank's share, 1/ranks of the elements.
  void update();  ///< Updates parameters from records and denominators.
  void adam();    ///< Runs an exact step.
  void sum();     ///< Adds this rank's share of an fp32 average, on one thread.

  // ---- 0/1 Adam
  void local_step();
  void sync_encode();  ///< Includes the work of a local step.
  void sync_update();
  void fresh();  ///< Allocates memory, as the first local step does.

  // ---- ZeRO, over 4 bits
  void store();  ///< Copies gradients on one thread.
  void quantize();
  void quantized_mean();  ///< Averages this rank's share.
  void difference();      ///< Subtracts replicas from masters.
  void dequantize();

  // ---- low rank, of one matrix about as long as wide
  void factor();
  void product();

 private:
  [[nodiscard]] std::size_t share() const;
  [[nodiscard]] std::size_t rows() const;
  [[nodiscard]] std::uint32_t* words(Buffer& of, std::size_t block) const;
  [[nodiscard]] kernels::SignBlock residual(std::size_t block, std::size_t at,
                                            std::size_t size);
  [[nodiscard]] std::uint32_t* codes(std::size_t block);
  template <class Body>
  void for_blocks(std::size_t elements, Body&& body);

  std::size_t elements_;
  std::size_t ranks_;
  ThreadPool pool_;
  Buffer params_, grads_, first_, second_;  // fp32
  Buffer third_, fourth_;                   // further operands
  Buffer residuals_;                        // bf16
  Buffer codes_;                            // one rank's, or a share
  Buffer words_;                            // one rank's signs
  Buffer received_;                         // all ranks' records of a share
  kernels::AdamCoefficients coefficients_{};
  std::vector<double> sums_;
};

/// A time per element with its name, its line in the output and the kernel it
/// measures.
struct Figure {
  std::string_view line;
  std::string_view name;
  double Compute::*value;
  void (MeasuredKernels::*kernel)();
};
inline constexpr std::string_view kEveryStep = "ns per element";
inline constexpr Figure kFigures[] = {
    {kEveryStep, "encode", &Compute::encode, &MeasuredKernels::encode},
    {kEveryStep, "serve", &Compute::serve, &MeasuredKernels::serve},
    {kEveryStep, "update", &Compute::update, &MeasuredKernels::update},
    {kEveryStep, "norm", &Compute::norm, &MeasuredKernels::norm},
    {kEveryStep, "Adam", &Compute::exact_update, &MeasuredKernels::adam},
    {kEveryStep, "sum", &Compute::sum, &MeasuredKernels::sum},
    {"0/1 Adam", "local step", &Compute::local_step,
     &MeasuredKernels::local_step},
    {"0/1 Adam", "sync encode", &Compute::sync_encode,
     &MeasuredKernels::sync_encode},
    {"0/1 Adam", "sync update", &Compute::sync_update,
     &MeasuredKernels::sync_update},
    {"0/1 Adam", "fresh memory", &Compute::fresh, &MeasuredKernels::fresh},
    {"ZeRO", "store", &Compute::store, &MeasuredKernels::store},
    {"ZeRO", "4 bits up", &Compute::quantize, &MeasuredKernels::quantize},
    {"ZeRO", "their mean", &Compute::quantized_mean,
     &MeasuredKernels::quantized_mean},
    {"ZeRO", "4 bits down", &Compute::difference, &MeasuredKernels::difference},
    {"ZeRO", "added", &Compute::dequantize, &MeasuredKernels::dequantize},
    {"low rank", "factors", &Compute::factor, &MeasuredKernels::factor},
    {"low rank", "product", &Compute::product, &MeasuredKernels::product}};

}  // namespace thinwire::plan
