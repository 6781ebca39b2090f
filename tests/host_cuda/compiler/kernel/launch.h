// From a launch's array of parameters to calls of the kernel; used by what source.cpp appends to a program.
#pragma once

namespace hostcuda {

template <size_t... I>
struct Indices {};

template <size_t I, class T>
struct Argument {
    T value;
};

template <class I, class... T>
struct Arguments;

template <size_t... I, class... T>
struct Arguments<Indices<I...>, T...> : Argument<I, T>... {};

template <class Function>
struct Parameters;

template <class... T>
struct Parameters<void (*)(T...)> {
    typedef Indices<__integer_pack(sizeof...(T))...> All;

    static constexpr unsigned count = sizeof...(T);
    struct Sizes {
        unsigned count = sizeof...(T);
        unsigned nbytes[sizeof...(T) + 1] = {sizeof(T)..., 0};
    };

    template <void (*kernel)(T...), size_t... I>
    static void run_thread(const void* memory, Indices<I...>) {
        (void)memory;
        kernel(static_cast<const Argument<I, T>*>(static_cast<const Arguments<All, T...>*>(memory))->value...);
    }

    template <void (*kernel)(T...)>
    static void run_thread(const void* memory) {
        run_thread<kernel>(memory, All());
    }

    template <size_t... I>
    static void copy(Arguments<All, T...>* arguments, void** given, Indices<I...>) {
        (void)given;
        (memcpy(&static_cast<Argument<I, T>*>(arguments)->value, given[I], sizeof(T)), ...);
    }

    template <void (*kernel)(T...)>
    static int launch(const char* name, void** given, const unsigned* grid, const unsigned* block,
                      unsigned dynamic_shared_nbytes, unsigned max_threads_per_block) {
        alignas(Arguments<All, T...>) unsigned char memory[sizeof(Arguments<All, T...>)];
        copy(reinterpret_cast<Arguments<All, T...>*>(memory), given, All());
        const Kernel description = {name, run_thread<kernel>, max_threads_per_block,
                                    HOSTCUDA_FTZ};
        return hostcuda_run(&description, memory, grid, block, dynamic_shared_nbytes);
    }
};

}  // namespace hostcuda
