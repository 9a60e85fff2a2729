// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "exchange/early_exchange.h"
#include "exchange/residuals.h"
#include "thinwire/exchange/active_mask.h"
#include "thinwire/exchange/compressed_all_reduce.h"

namespace thinwire::exchange {

/// A run of CompressedAllReduce that may be taken back: what it writes are
/// second residuals and records, which take the place of the first if it
/// counts.
class EarlyRun {
 public:
  /// What a run reads, all of the CompressedAllReduce's.
  struct Present {
    const BlockLayout& layout;
    const ActiveMask& active;
    const Residuals& residuals;
    WireObserver* const& observer;
  };

  EarlyRun(comm::Communicator& comm, const Present& present,
           const CompressedAllReduceOptions& options);

  void begin(CompressedAllReduce::Source source);
  [[nodiscard]] EarlyExchange& exchange() noexcept { return exchange_; }
  /// Collective: the Sink gets the results. Then they may be swapped.
  void finish(ThreadPool& pool, const CompressedAllReduce::Sink& sink,
              const CompressedAllReduce::Delivered& delivered);
  [[nodiscard]] Residuals& residuals() noexcept { return residuals_; }

 private:
  [[nodiscard]] kernels::SignBlock sign_block(std::size_t block,
                                              const KeptResidual& kept);
  void sent(std::size_t block, const KeptResidual& kept, float scale);
  void encode(Range blocks, const CompressedAllReduce::Source& source);
  void average(const Received& from, Range blocks);

  const Present now_;
  std::size_t ranks_;
  Residuals residuals_;
  EarlyExchange exchange_;  // last: its thread uses the rest
};

}  // namespace thinwire::exchange
