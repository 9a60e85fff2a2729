// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/communicator.h"

#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/communicator_impl.h"
#include "core/require.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {
namespace {

std::unique_ptr<Transport> require_valid(std::unique_ptr<Transport> transport,
                                         const CommunicatorOptions& options) {
  if (!transport) reject("Communicator: transport must not be null");
  require(options.timeout > std::chrono::milliseconds::zero(),
          "CommunicatorOptions: timeout", "> 0",
          fmt::format("{} ms", options.timeout.count()));
  arguments::require_hosts(options, transport->rank(), transport->size());
  return transport;
}

// Returns flat options, in which every rank is a separate host.
CommunicatorOptions with_hosts(CommunicatorOptions options, int rank,
                               int size) {
  if (options.hosts.is_flat()) options.hosts = {.size = size, .index = rank};
  return options;
}

// Returns the options of a group whose hosts are unknown or do not matter.
CommunicatorOptions flat(CommunicatorOptions options) {
  options.hosts = {};
  return options;
}

}  // namespace

Counters& Counters::operator+=(const Counters& more) noexcept {
  bytes_sent += more.bytes_sent;
  collectives += more.collectives;
  messages += more.messages;
  bytes_between_hosts += more.bytes_between_hosts;
  busy_seconds += more.busy_seconds;
  return *this;
}

Counters operator-(const Counters& now, const Counters& before) noexcept {
  return {.bytes_sent = now.bytes_sent - before.bytes_sent,
          .collectives = now.collectives - before.collectives,
          .messages = now.messages - before.messages,
          .bytes_between_hosts =
              now.bytes_between_hosts - before.bytes_between_hosts,
          .busy_seconds = now.busy_seconds - before.busy_seconds};
}

Communicator::Impl::Impl(std::unique_ptr<Transport> owned,
                         const CommunicatorOptions& chosen)
    : transport(require_valid(std::move(owned), chosen)),
      rank(transport->rank()),
      size(transport->size()),
      options(with_hosts(chosen, rank, size)),
      routes(rank, size, options.hosts),
      collectives(*transport, options, routes),
      queue([this](const std::string& text) { transport->give_up(text); }) {}

Communicator::Communicator(std::unique_ptr<Transport> transport,
                           const CommunicatorOptions& options)
    : impl_(std::make_unique<Impl>(std::move(transport), options)) {}

Communicator::~Communicator() = default;

int Communicator::rank() const noexcept { return impl_->rank; }
int Communicator::size() const noexcept { return impl_->size; }
std::string_view Communicator::backend() const noexcept {
  return impl_->transport->name();
}
std::chrono::milliseconds Communicator::timeout() const noexcept {
  return impl_->options.timeout;
}
const Hosts& Communicator::hosts() const noexcept {
  return impl_->options.hosts;
}
Counters Communicator::counters() const noexcept {
  const Tally& tally = *impl_->tally;
  constexpr auto kRelaxed = Tally::kRelaxed;
  return {
      .bytes_sent = tally.bytes_sent.load(kRelaxed),
      .collectives = tally.calls.load(kRelaxed),
      .messages = tally.messages.load(kRelaxed),
      .bytes_between_hosts = tally.bytes_between.load(kRelaxed),
      .busy_seconds =
          static_cast<double>(tally.busy_nanoseconds.load(kRelaxed)) * 1e-9};
}

void Communicator::broadcast(View data, int root) {
  queue_broadcast(data, root).wait();
}

Work Communicator::queue_call(std::function<void()> body) {
  return impl_->push("call", std::move(body));
}

Work Communicator::queue_broadcast(View data, int root) {
  constexpr std::string_view kCall = "broadcast";
  arguments::require_memory(kCall, "data", data);
  if (root < 0 || root >= size())
    reject(fmt::format("{}: root must be in [0, {}), got {}", kCall, size(),
                       root));
  Cost cost;
  for (int peer = 0; rank() == root && peer < size(); ++peer)
    if (peer != root) cost += impl_->routes.message(peer, data.bytes());
  return impl_->start(kCall, cost,
                      [=, this] { impl_->collectives.broadcast(data, root); });
}

void Communicator::barrier() {
  impl_->start("barrier", {}, [this] { impl_->collectives.barrier(); }).wait();
}

void Communicator::finish_queued() {
  if (size() == 1) return;
  const auto end = std::make_shared<Completion>("finish_queued");
  impl_->queue.push(end, [] {});
  end->wait();
}

void Communicator::give_up(std::string_view reason) noexcept {
  impl_->give_up(std::string(reason));
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  return impl_->split(color, key, flat(impl_->options));
}

std::unique_ptr<Communicator> Communicator::by_host(const Hosts& hosts) {
  CommunicatorOptions options = flat(impl_->options);
  if (!hosts.is_flat()) options.hosts = hosts;
  arguments::require_hosts(options, rank(), size());
  return impl_->split(0, rank(), options);
}

std::unique_ptr<Communicator> Communicator::Impl::split(
    int color, int key, const CommunicatorOptions& chosen) {
  std::unique_ptr<Transport> part;
  // The failure is thrown outside the queue, so that a transport without groups
  // stays usable.
  std::optional<Error> unavailable;
  start("split", {}, [&] {
    try {
      part = collectives.split(color, key);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      unavailable = error;
    }
  }).wait();
  if (unavailable) throw *unavailable;
  if (!part) return nullptr;
  auto made = std::make_unique<Communicator>(std::move(part), chosen);
  made->impl_->join(parts);
  return made;
}

HostGroups split_by_host(Communicator& comm, std::chrono::milliseconds later) {
  Communicator::Impl& whole = *comm.impl_;
  const Hosts& hosts = comm.hosts();
  CommunicatorOptions options = flat(whole.options);
  options.timeout += later;
  HostGroups groups;
  groups.between = whole.split(hosts.local_rank, hosts.index, options);
  if (!hosts.is_flat()) {
    // The group is one host, so that no message counts as leaving the host.
    options.hosts = {.ranks_per_host = hosts.ranks_per_host,
                     .local_rank = hosts.local_rank,
                     .ranks = std::vector<int>(
                         static_cast<std::size_t>(hosts.ranks_per_host))};
    std::iota(options.hosts.ranks.begin(), options.hosts.ranks.end(), 0);
  }
  options.timeout += later;
  groups.inside = whole.split(hosts.index, hosts.local_rank, options);
  for (Communicator* part : {groups.inside.get(), groups.between.get()})
    part->impl_->tally->parent = whole.tally;
  // Errors name ranks by their numbers in the whole group.
  const auto rank_at = [&](int host, int local) {
    const int at = host * hosts.ranks_per_host + local;
    return hosts.is_flat() ? at : hosts.ranks[static_cast<std::size_t>(at)];
  };
  std::vector<int> inside;
  std::vector<int> between;
  for (int local = 0; local < hosts.ranks_per_host; ++local)
    inside.push_back(rank_at(hosts.index, local));
  for (int host = 0; host < hosts.size; ++host)
    between.push_back(rank_at(host, hosts.local_rank));
  groups.inside->impl_->collectives.name_ranks(std::move(inside));
  groups.between->impl_->collectives.name_ranks(std::move(between));
  return groups;
}

}  // namespace thinwire::comm
