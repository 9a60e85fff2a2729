// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <type_traits>
#include <utility>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// The main() of a data-parallel program:
///   int main() { return thinwire::comm::run(train); }
/// Calls body(communicator) on from_environment()'s communicator and returns
/// what it returns. If it throws, the other ranks are told why, and this rank
/// returns 1: their next exchange with it throws, so that all of them end.
///
/// The only function of the library that prints: it has the program's last
/// word, with or without a log's sink (core/log.h). A rank that fails by itself
/// writes "rank 1: ..." to `errors`, null: std::cerr ("error: ..." where it is
/// alone). It does so a second later, if the others do not come there too, and
/// where all ranks fail together, as when they disagree about options, only the
/// first one writes. A rank that another one's failure has ended writes
/// nothing. Collective. MPI is not finalized after a failure, which could wait
/// for ranks that never come.
[[nodiscard]] int run(const std::function<int(Communicator&)>& body,
                      std::ostream* errors = nullptr);
/// The same on a communicator that was made in another way.
[[nodiscard]] int run(std::unique_ptr<Communicator> comm,
                      const std::function<int(Communicator&)>& body,
                      std::ostream* errors = nullptr);

/// The same for a body that returns nothing: 0 unless it throws.
template <class Body>
requires std::is_void_v<std::invoke_result_t<Body&, Communicator&>>
[[nodiscard]] int run(Body&& body, std::ostream* errors = nullptr) {
  return run(std::function<int(Communicator&)>([&body](Communicator& comm) {
               body(comm);
               return 0;
             }),
             errors);
}

}  // namespace thinwire::comm
