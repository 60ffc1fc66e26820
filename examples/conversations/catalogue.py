"""Which APIs become tools, under which prefix, and what each of them promises about its methods."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["APIS", "FUNCTION_SEPARATOR", "Api", "api_of_class", "effect_of", "target_of", "tool_name"]

FUNCTION_SEPARATOR = "__"


@dataclass(frozen=True, kw_only=True)
class Api:
    """One stateful API.

    `prefix` begins its tool names; `class_name` and `module` find it in the corpus distribution; `doc_file`
    holds its published schemas. `phases`: its tools call `begin_effect()` right before their effect.
    `reconcile`: its unknown outcomes are settled by the reconcile tool; the others' wait for a person.
    `read_only` methods change no attribute, random generators included, and are `safe`; all others are
    `final`. `stateless`: built without an initial configuration.
    """

    prefix: str
    class_name: str
    module: str
    doc_file: str
    phases: bool
    reconcile: bool
    read_only: frozenset[str]
    stateless: bool = False


# phases and reconcile cross, so that each of the four combinations is met by two APIs.
APIS: tuple[Api, ...] = (
    Api(
        prefix="files",
        class_name="GorillaFileSystem",
        module="gorilla_file_system",
        doc_file="gorilla_file_system.json",
        phases=True,
        reconcile=True,
        # not cd: it moves the current directory; not echo: it may write.
        read_only=frozenset({"cat", "diff", "du", "find", "grep", "ls", "pwd", "sort", "tail", "wc"}),
    ),
    Api(
        prefix="vehicle",
        class_name="VehicleControlAPI",
        module="vehicle_control",
        doc_file="vehicle_control.json",
        phases=False,
        reconcile=True,
        # not get_current_speed, not get_outside_temperature_from_google: both draw from the random generator.
        read_only=frozenset(
            {
                "check_tire_pressure",
                "displayCarStatus",
                "display_log",
                "estimate_distance",
                "estimate_drive_feasibility_by_mileage",
                "find_nearest_tire_shop",
                "gallon_to_liter",
                "get_outside_temperature_from_weather_com",
                "get_zipcode_based_on_city",
                "liter_to_gallon",
            }
        ),
    ),
    Api(
        prefix="trading",
        class_name="TradingBot",
        module="trading_bot",
        doc_file="trading_bot.json",
        phases=True,
        reconcile=True,
        read_only=frozenset(
            {
                "filter_stocks_by_price",
                "get_account_info",
                "get_available_stocks",
                "get_current_time",
                "get_order_details",
                "get_order_history",
                "get_stock_info",
                "get_symbol_by_name",
                "get_transaction_history",
                "get_watchlist",
                "notify_price_change",
                "trading_get_login_status",
            }
        ),
    ),
    Api(
        prefix="travel",
        class_name="TravelAPI",
        module="travel_booking",
        doc_file="travel_booking.json",
        phases=False,
        reconcile=True,
        # not get_flight_cost: it replaces the price cache; not contact_customer_support: a person is reached.
        read_only=frozenset(
            {
                "compute_exchange_rate",
                "get_all_credit_cards",
                "get_booking_history",
                "get_budget_fiscal_year",
                "get_credit_card_balance",
                "get_nearest_airport_by_city",
                "list_all_airports",
                "retrieve_invoice",
                "travel_get_login_status",
                "verify_traveler_information",
            }
        ),
    ),
    Api(
        prefix="messages",
        class_name="MessageAPI",
        module="message_api",
        doc_file="message_api.json",
        phases=True,
        reconcile=False,
        read_only=frozenset(
            {
                "get_message_stats",
                "get_user_id",
                "list_users",
                "message_get_login_status",
                "search_messages",
                "view_messages_sent",
            }
        ),
    ),
    Api(
        prefix="posting",
        class_name="TwitterAPI",
        module="posting_api",
        doc_file="posting_api.json",
        phases=False,
        reconcile=False,
        read_only=frozenset(
            {
                "get_tweet",
                "get_tweet_comments",
                "get_user_stats",
                "get_user_tweets",
                "list_all_following",
                "posting_get_login_status",
                "search_tweets",
            }
        ),
    ),
    Api(
        prefix="tickets",
        class_name="TicketAPI",
        module="ticket_api",
        doc_file="ticket_api.json",
        phases=False,
        reconcile=False,
        read_only=frozenset({"get_ticket", "get_user_tickets", "ticket_get_login_status"}),
    ),
    Api(
        prefix="maths",
        class_name="MathAPI",
        module="math_api",
        doc_file="math_api.json",
        phases=True,
        reconcile=False,
        stateless=True,
        read_only=frozenset(
            {
                "absolute_value",
                "add",
                "divide",
                "imperial_si_conversion",
                "logarithm",
                "max_value",
                "mean",
                "min_value",
                "multiply",
                "percentage",
                "power",
                "round_number",
                "si_unit_conversion",
                "square_root",
                "standard_deviation",
                "subtract",
                "sum_values",
            }
        ),
    ),
)


def api_of_class(class_name: str) -> Api:
    """Return the API whose class is `class_name`; KeyError if there is none."""
    for api in APIS:
        if api.class_name == class_name:
            return api
    raise KeyError(class_name)


def tool_name(api: Api, method: str) -> str:
    """Return the tool name of a method, e.g. `travel.book_flight`."""
    return f"{api.prefix}.{method}"


def target_of(api: Api, method: str) -> str:
    """Return the function behind a tool, for the config, e.g. `conversations.apis:travel__book_flight`."""
    return f"conversations.apis:{api.prefix}{FUNCTION_SEPARATOR}{method}"


def effect_of(api: Api, method: str) -> str:
    """Return the tool's effect: `safe` for the read-only list, else `final`."""
    return "safe" if method in api.read_only else "final"
