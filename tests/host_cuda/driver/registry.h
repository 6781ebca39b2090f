// Handles given to the program: opaque numbers that are never given twice, so that a destroyed one is always recognised.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace hostcuda {

template <typename Object>
class Registry {
public:
    // `kind` tells the handles of one registry from those of the others.
    explicit Registry(unsigned kind) : next_((0x5CUL << 40) + (static_cast<std::uintptr_t>(kind) << 36)) {}

    std::uintptr_t add(std::shared_ptr<Object> object) {
        std::lock_guard<std::mutex> guard(mutex_);
        next_ += 64;
        objects_[next_] = std::move(object);
        return next_;
    }

    template <typename Handle>
    std::shared_ptr<Object> find(Handle handle) const {
        std::lock_guard<std::mutex> guard(mutex_);
        auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
        return found == objects_.end() ? nullptr : found->second;
    }

    template <typename Handle>
    std::shared_ptr<Object> remove(Handle handle) {
        std::lock_guard<std::mutex> guard(mutex_);
        auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
        if (found == objects_.end()) return nullptr;
        std::shared_ptr<Object> object = std::move(found->second);
        objects_.erase(found);
        return object;
    }

private:
    mutable std::mutex mutex_;
    std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
    std::uintptr_t next_;
};

}  // namespace hostcuda
