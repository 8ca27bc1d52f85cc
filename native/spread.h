// Run a job on several threads, this one among them.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace perdure {

// Call `work(worker)` for every worker in [0, workers), each on a thread of its own and the last on the calling thread;
// return when all have. `work` must not throw. If the system refuses a thread, its share is done here: slower, not wrong.
template <class Work>
void spread(std::size_t workers, const Work& work) {
    std::vector<std::thread> threads;
    std::size_t next = 0;
    if (workers > 1) {
        threads.reserve(workers - 1);
        try {
            for (; next + 1 < workers; ++next) threads.emplace_back([&work, next] { work(next); });
        } catch (const std::system_error&) {
        }
    }
    for (; next < workers; ++next) work(next);
    for (auto& thread : threads) thread.join();
}

}  // namespace perdure
