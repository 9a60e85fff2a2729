// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <iosfwd>
#include <memory>
#include <type_traits>
#include <utility>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// What run() calls: body(communicator) returns nothing or the program's exit
/// code.
template <class Body>
concept RankBody = std::invocable<Body&, Communicator&> &&
    (std::is_void_v<std::invoke_result_t<Body&, Communicator&>> ||
     std::convertible_to<std::invoke_result_t<Body&, Communicator&>, int>);

namespace detail {

using BodyFunction = std::function<int(Communicator&)>;

template <RankBody Body>
BodyFunction returning_int(Body& body) {
  return [&body](Communicator& comm) -> int {
    if constexpr (std::is_void_v<std::invoke_result_t<Body&, Communicator&>>) {
      body(comm);
      return 0;
    } else {
      return body(comm);
    }
  };
}

int run(const BodyFunction& body, std::ostream* errors);
int run(Communicator& comm, const BodyFunction& body, std::ostream* errors);
int run(std::unique_ptr<Communicator> comm, const BodyFunction& body,
        std::ostream* errors);

}  // namespace detail

/// The main() of a data-parallel program:
///   int main() { return thinwire::comm::run(train); }
/// Calls body(communicator) on from_environment()'s communicator and returns
/// what it returns, or 0 if it returns nothing. If it throws, this rank tells
/// the other ranks why and returns 1: their next exchange with it throws, so
/// that all of them end.
///
/// The only function of the library that prints: it has the program's last
/// word, with or without a log's sink (core/log.h). A rank that fails by itself
/// writes "rank 1: ..." to `errors`, null: std::cerr ("error: ..." where it is
/// alone). It does so a second later, if the others do not come there too, and
/// where all ranks fail together, as when they disagree about options, only the
/// first one writes. A rank that another one's failure has ended writes
/// nothing. Collective. MPI is not finalized after a failure, which could wait
/// for ranks that never come.
template <RankBody Body>
[[nodiscard]] int run(Body&& body, std::ostream* errors = nullptr) {
  return detail::run(detail::returning_int(body), errors);
}

/// Does the same on a communicator that the caller has made; after a failure
/// the caller may only destroy it. If its transport has no split(), the ranks
/// cannot agree on who reports: every rank that fails by itself writes at once,
/// and tells the others a second later.
template <RankBody Body>
[[nodiscard]] int run(Communicator& comm, Body&& body,
                      std::ostream* errors = nullptr) {
  return detail::run(comm, detail::returning_int(body), errors);
}

/// Does the same and destroys the communicator before it returns. Throws
/// Error(kInvalidArgument) if `comm` is null.
template <RankBody Body>
[[nodiscard]] int run(std::unique_ptr<Communicator> comm, Body&& body,
                      std::ostream* errors = nullptr) {
  return detail::run(std::move(comm), detail::returning_int(body), errors);
}

}  // namespace thinwire::comm
