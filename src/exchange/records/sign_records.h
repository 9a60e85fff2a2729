// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "exchange/records/records.h"
#include "exchange/records/two_phase_exchange.h"
#include "exchange/residuals.h"
#include "thinwire/exchange/compressed_all_reduce.h"

namespace thinwire::exchange {

/// Records of 1 bit per element with error feedback, which travel through
/// `exchange`, a TwoPhaseExchange or an EarlyExchange of `layout`.
template <class Exchange>
struct SignRecords {
  const BlockLayout& layout;
  const ActiveMask& active;
  WireObserver* const& observer;  // of the next steps()
  Residuals& residuals;
  Exchange& exchange;
  /// Residuals before the run, if it is to keep them; otherwise null. They are
  /// copied block by block, as these are encoded, to stay in the cache.
  const Residuals* before = nullptr;

  /// Returns the steps of a run, which refer to this object.
  [[nodiscard]] RecordSteps steps(CompressedAllReduce::Source source,
                                  std::function<void(Range)> deliver) {
    RecordSteps steps{
        .encode = [this, source = std::move(source)](
                      Range blocks) { encode(blocks, source); },
        .average = [this](const Received& from,
                          Range blocks) { average(from, blocks); },
        .deliver = std::move(deliver)};
    if (observer == nullptr) return steps;
    const auto show = [this, to = observer](auto member) {
      return [this, to, member](Range blocks) {
        for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
          (to->*member)(b, signs_in(exchange.record(b)));
      };
    };
    steps.encoded = show(&WireObserver::worker_record);
    steps.averaged = show(&WireObserver::server_record);
    return steps;
  }

  /// Encodes blocks of a server's own values, without a mean.
  void encode_served(Range blocks, const CompressedAllReduce::Source& source) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
      write(b, residuals.server.kept(b), [&](const auto& block) {
        return kernels::sign_encode(source(b), block);
      });
  }

 private:
  template <class Encode>
  void write(std::size_t b, const KeptResidual& kept, const Encode& encode) {
    std::uint8_t* const record = exchange.record(b);
    const float scale =
        encode(kernels::SignBlock{.residual = kept.values,
                                  .scale = kept.scale,
                                  .words = words_of(record),
                                  .active = active.words(layout, b),
                                  .num_active = active.count(layout, b)});
    set_scale(record, scale);
    kept.sent_with(scale);
  }

  void encode(Range blocks, const CompressedAllReduce::Source& source) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      if (before != nullptr) residuals.worker.copy(b, before->worker);
      write(b, residuals.worker.kept(b), [&](const auto& block) {
        return kernels::sign_encode(source(b), block);
      });
    }
  }

  void average(const Received& from, Range blocks) {
    std::vector<kernels::Signs> signs(exchange.places().workers);
    const auto inverse_count =
        static_cast<float>(1.0 / static_cast<double>(signs.size()));
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      for (std::size_t r = 0; r < signs.size(); ++r)
        signs[r] = signs_in(from.record(r, b));
      if (before != nullptr) residuals.server.copy(b, before->server);
      write(b, residuals.server.kept(b), [&](const auto& block) {
        return kernels::sign_encode_average(signs, inverse_count, block);
      });
    }
  }
};

}  // namespace thinwire::exchange
