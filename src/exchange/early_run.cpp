// SPDX-License-Identifier: Apache-2.0
#include "exchange/early_run.h"

#include <utility>
#include <vector>

namespace thinwire::exchange {

using kernels::Signs;

EarlyRun::EarlyRun(comm::Communicator& comm, const Present& present,
                   const CompressedAllReduceOptions& options)
    : now_(present),
      ranks_(static_cast<std::size_t>(comm.size())),
      residuals_(present.layout, Places(comm, nullptr), options.residual_dtype),
      exchange_(comm, options.early_threads, present.layout) {}

void EarlyRun::begin(CompressedAllReduce::Source source) {
  RecordSteps steps{.encode = [this, source = std::move(source)](
                                  Range blocks) { encode(blocks, source); },
                    .average = [this](const Received& from,
                                      Range blocks) { average(from, blocks); },
                    .deliver = {}};
  if (WireObserver* const observer = now_.observer; observer != nullptr) {
    steps.encoded = [this, observer](Range blocks) {
      for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
        observer->worker_record(b, signs_in(exchange_.record(b)));
    };
    steps.averaged = [this, observer](Range blocks) {
      for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
        observer->server_record(b, signs_in(exchange_.record(b)));
    };
  }
  exchange_.begin(std::move(steps));
}

void EarlyRun::finish(ThreadPool& pool, const CompressedAllReduce::Sink& sink,
                      const CompressedAllReduce::Delivered& delivered) {
  const auto deliver = [&](Range blocks) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
      sink(b, signs_in(exchange_.record(b)));
  };
  exchange_.finish(pool, deliver, delivered);
}

kernels::SignBlock EarlyRun::sign_block(std::size_t b,
                                        const KeptResidual& kept) {
  return {.residual = kept.values,
          .scale = kept.scale,
          .words = words_of(exchange_.record(b)),
          .active = now_.active.words(now_.layout, b),
          .num_active = now_.active.count(now_.layout, b)};
}

void EarlyRun::sent(std::size_t b, const KeptResidual& kept, float scale) {
  set_scale(exchange_.record(b), scale);
  kept.sent_with(scale);
}

// Copied into the cache first, so memory is read here and written there once.
void EarlyRun::encode(Range blocks, const CompressedAllReduce::Source& source) {
  for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
    residuals_.copy_worker(b, now_.residuals);
    const KeptResidual kept = residuals_.kept_worker(b);
    sent(b, kept, kernels::sign_encode(source(b), sign_block(b, kept)));
  }
}

void EarlyRun::average(const Received& from, Range blocks) {
  const auto inverse_count =
      static_cast<float>(1.0 / static_cast<double>(ranks_));
  std::vector<Signs> signs(ranks_);
  for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
    for (std::size_t r = 0; r < ranks_; ++r)
      signs[r] = signs_in(from.record(r, b));
    residuals_.copy_server(b, now_.residuals);
    const KeptResidual kept = residuals_.kept_server(b);
    sent(b, kept,
         kernels::sign_encode_average(signs, inverse_count,
                                      sign_block(b, kept)));
  }
}

}  // namespace thinwire::exchange
