// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/reduce.h"
#include "comm/routes.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/transport.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::comm {

/// Implements Communicator's collectives with Transport::exchange(). Only one
/// thread may call at a time, and the caller has checked the arguments. All
/// methods throw Error(kCommFailure).
class Collectives {
 public:
  Collectives(Transport& transport, const CommunicatorOptions& options,
              const Routes& routes);

  /// Cuts `data` into Routes::pieces(). Each rank reduces its own pieces and
  /// sends the result to all ranks.
  void all_reduce(View data, ReduceOp op);
  /// Reduces pieces[r] of input into output on rank r. The output may be the
  /// rank's own part of input. In hierarchical mode each host first computes
  /// unrounded sums, which are then added between hosts.
  void reduce_scatter(ConstView input, std::span<const Range> pieces,
                      View output, ReduceOp op);
  /// Copies rank r's input to places[r] of output.
  void all_gather(ConstView input, View output, std::span<const Range> places);
  /// Sends sent[r] of input to rank r, and receives received[r] of output from
  /// it.
  void all_to_all(ConstView input, std::span<const Range> sent, View output,
                  std::span<const Range> received);
  void broadcast(View data, int root);
  /// Sends one byte to every rank and receives one from each, because a message
  /// of 0 bytes would not be sent.
  void barrier();
  [[nodiscard]] std::unique_ptr<Transport> split(int color, int key);
  /// Sets the ranks' names in errors, from the next collective on.
  void name_ranks(std::vector<int> names);

 private:
  void begin(std::string_view name);
  [[nodiscard]] Operation next_operation();
  void send(int peer, ConstView data);
  void receive(int peer, void* data, std::size_t bytes);
  void exchange();
  void reduce(ConstView input, const Legs& legs, View output, ReduceOp op);
  void reduce_leg(ConstView input, const Leg& leg, View output,
                  const Reducer& reducer);
  void gather(View data, const Legs& legs);
  void gather_leg(View data, const Leg& leg);
  void gather_in_steps(View data, std::span<const Range> places);

  Transport& transport_;
  const CommunicatorOptions options_;
  const Routes& routes_;
  const int rank_;
  const int size_;
  std::vector<int> names_;
  Operation operation_;
  std::vector<SendMessage> sends_;
  std::vector<RecvMessage> receives_;
  Buffer scratch_;  ///< Values of other ranks during a reduction.
  Buffer sums_;     ///< This host's sums in hierarchical mode.
};

}  // namespace thinwire::comm
